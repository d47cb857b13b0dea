//! Creates, replaces and patches.

use super::options::{Options, Validation, perform};
use super::path::Target;
use super::{Reply, Request, decode};
use crate::defaults;
use crate::failure::Failure;
use crate::object::{self, metadata, name, text};
use crate::patch::{self, Format, managed};
use crate::resource::Kind;
use crate::store::{Key, Part, Store};
use serde_json::{Value, json};

/// POST to a collection.
pub fn create(store: &mut Store, request: &Request, target: &Target) -> Result<Reply, Failure> {
    let options = Options::of(request, "CreateOptions")?;
    if target.namespace.is_none() && target.kind.resource().namespaced {
        return Err(Failure::method_not_allowed());
    }
    json_body(request)?;
    let (object, warnings) = decode::object(target.kind, &request.body, options.validation)?;
    let created = create_object(store, target, &options, object)?;
    Ok(Reply::Object { code: 201, body: created, warnings })
}

fn create_object(store: &mut Store, target: &Target, options: &Options, mut object: Value) -> Result<Value, Failure> {
    place(target, &mut object)?;
    if !text(&object, "/metadata/resourceVersion").is_empty() {
        return Err(Failure::internal("resourceVersion should not be set on objects to be created"));
    }
    if has_status(target.kind) {
        drop(object.as_object_mut().and_then(|object| object.remove("status")));
    }
    defaults::fill(target.kind, &mut object);
    managed::track(None, &mut object, &options.manager, "", store.now());
    let created = perform(store, options.dry, |store| store.create(target.kind, object))?;
    let mut created = Value::clone(&created);
    if options.dry {
        metadata(&mut created).remove("resourceVersion");
    }
    Ok(created)
}

/// PUT of an object or of its status.
pub fn replace(store: &mut Store, request: &Request, target: &Target, part: Part) -> Result<Reply, Failure> {
    let options = Options::of(request, "UpdateOptions")?;
    json_body(request)?;
    let (mut object, warnings) = decode::object(target.kind, &request.body, options.validation)?;
    place(target, &mut object)?;
    let Some(before) = store.find(&target.key()).cloned() else {
        if !may_be_created_by_update(target.kind) || part == Part::Status {
            return Err(Failure::not_found(target.kind, target.name.as_deref().unwrap_or_default()));
        }
        metadata(&mut object).remove("resourceVersion");
        let created = create_object(store, target, &options, object)?;
        return Ok(Reply::Object { code: 201, body: created, warnings });
    };
    if target.kind == Kind::Lease && text(&object, "/metadata/resourceVersion").is_empty() {
        let causes = [("metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update".to_owned())];
        return Err(Failure::invalid_named("leases", "coordination.k8s.io", name(&object), &causes));
    }
    let body = update(store, target, part, &options, &before, object)?;
    Ok(Reply::Object { code: 200, body, warnings })
}

/// PATCH of an object or of its status.
pub fn patch(store: &mut Store, request: &Request, target: &Target, part: Part) -> Result<Reply, Failure> {
    let options = Options::of(request, "PatchOptions")?;
    let format = Format::of(&request.content_type)?;
    if format == Format::Apply {
        return apply(store, request, target, part, &options);
    }
    if request.given("force").is_some() {
        let why = "Forbidden: may not be specified for non-apply patch".to_owned();
        return Err(super::options::refused("PatchOptions", &[("force", why)]));
    }
    let before = store.get(&target.key())?.clone();
    let mut object = patch::patched(format, &before, &request.body)?;
    let unknown =
        decode::read(target.kind, &mut object).map_err(|why| patch::refused(format, &object, &request.body, &why))?;
    if options.validation == Validation::Strict && !unknown.is_empty() {
        return Err(patch::refused(format, &object, &request.body, &decode::strict(&unknown)));
    }
    place(target, &mut object)?;
    if text(&object, "/metadata/uid") != object::uid(&before) {
        let why = format!("Invalid value: {:?}: field is immutable", text(&object, "/metadata/uid"));
        let cause = ("metadata.uid".to_owned(), why);
        // A real one finds it twice, though it says so once.
        return Err(Failure::invalid(target.kind, name(&before), &[cause.clone(), cause]));
    }
    let warnings = decode::warnings(&unknown, options.validation);
    let body = update(store, target, part, &options, &before, object)?;
    Ok(Reply::Object { code: 200, body, warnings })
}

/// Server-side apply.
fn apply(
    store: &mut Store,
    request: &Request,
    target: &Target,
    part: Part,
    options: &Options,
) -> Result<Reply, Failure> {
    let required = || {
        let why = "Required value: is required for apply patch".to_owned();
        super::options::refused("PatchOptions", &[("fieldManager", why)])
    };
    let manager = request.given("fieldManager").ok_or_else(required)?;
    let wanted = applied(request, target)?;
    let before = store.find(&target.key()).cloned();
    let (force, now) = (request.says("force"), store.now());
    let subresource = target.subresource.map_or("", crate::resource::Subresource::name);
    let object = managed::apply(before.as_deref(), &wanted, &managed::Manager::new(manager, subresource), force, now)?;
    let key = target.key();
    let done = perform(store, options.dry, |store| match &before {
        Some(_) => store.update(&key, part, object),
        None if part == Part::Status => Err(Failure::not_found(target.kind, &key.name)),
        None => store.create(target.kind, object),
    })?;
    let code = if before.is_some() { 200 } else { 201 };
    Ok(Reply::object(code, Value::clone(&done)))
}

fn applied(request: &Request, target: &Target) -> Result<Value, Failure> {
    let mut wanted: Value = serde_json::from_slice(&request.body).map_err(|error| {
        Failure::bad_request(format!("error decoding the applied object, which has to be JSON here: {error}"))
    })?;
    let resource = target.kind.resource();
    let (version, name) = (text(&wanted, "/apiVersion").to_owned(), text(&wanted, "/kind").to_owned());
    if version != resource.api_version() || name != resource.name {
        let group = if version.contains('/') { version } else { format!("/{version}") };
        return Err(Failure::bad_request(format!("invalid object type: {group}, Kind={name}")));
    }
    if wanted.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Failure::bad_request("metadata.managedFields must be nil"));
    }
    let (here, said) = (object::namespace(&wanted).to_owned(), object::name(&wanted).to_owned());
    let group = if resource.group.is_empty() { "/v1".to_owned() } else { resource.api_version() };
    let cannot = |why: &str| {
        let what = format!("({here}/{said}; {group}, Kind={name})");
        Failure::internal(format!("failed to create typed patch object {what}: {why}"))
    };
    let unknown = decode::read(target.kind, &mut wanted).map_err(|why| cannot(&why))?;
    let undeclared = |path: &String| format!(".{path}: field not declared in schema");
    match unknown.as_slice() {
        [] => {}
        [path] => return Err(cannot(&undeclared(path))),
        paths => {
            let lines: Vec<String> = paths.iter().map(|path| format!("\n  {}", undeclared(path))).collect();
            return Err(cannot(&format!("errors:{}", lines.concat())));
        }
    }
    let url = target.name.as_deref().unwrap_or_default();
    if object::name(&wanted).is_empty() {
        object::metadata(&mut wanted).insert("name".to_owned(), json!(url));
    }
    place(target, &mut wanted)?;
    Ok(wanted)
}

/// Writes an object over another.
fn update(
    store: &mut Store,
    target: &Target,
    part: Part,
    options: &Options,
    before: &Value,
    mut object: Value,
) -> Result<Value, Failure> {
    let key: Key = target.key();
    if part == Part::Main {
        defaults::fill(target.kind, &mut object);
    }
    let subresource = if part == Part::Status { "status" } else { "" };
    managed::track(Some(before), &mut object, &options.manager, subresource, store.now());
    let updated = perform(store, options.dry, |store| store.update(&key, part, object))?;
    let mut updated = Value::clone(&updated);
    if options.dry {
        updated["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    }
    Ok(updated)
}

/// Checks that an object is where its path says, and says so in it.
fn place(target: &Target, object: &mut Value) -> Result<(), Failure> {
    if !object.get("metadata").is_none_or(Value::is_object) {
        return Err(Failure::bad_request("the object's metadata is not an object"));
    }
    let (is, url) = (name(object).to_owned(), target.name.as_deref().unwrap_or(name(object)));
    if is.is_empty() && target.name.is_some() {
        let why = format!("the name of the object ({url} based on URL) was undeterminable: name must be provided");
        return Err(Failure::bad_request(why));
    }
    if is != url {
        return Err(Failure::bad_request(format!(
            "the name of the object ({is}) does not match the name on the URL ({url})"
        )));
    }
    let Some(namespace) = &target.namespace else { return Ok(()) };
    let is = object::namespace(object);
    if !is.is_empty() && is != namespace {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Failure::bad_request(why));
    }
    metadata(object).insert("namespace".to_owned(), json!(namespace));
    Ok(())
}

fn json_body(request: &Request) -> Result<(), Failure> {
    let kind = request.content_type.split(';').next().unwrap_or_default().trim();
    if kind.is_empty() || kind == "application/json" {
        return Ok(());
    }
    let accepted = "accepted media types include: application/json, application/vnd.kubernetes.protobuf";
    let why = format!("the body of the request was in an unknown format - {accepted}");
    Err(Failure::unsupported_media_type(why))
}

/// The kinds whose status is written apart from the rest: a status given at their creation is dropped.
fn has_status(kind: Kind) -> bool {
    kind.resource().subresources.contains(&crate::resource::Subresource::Status)
}

fn may_be_created_by_update(kind: Kind) -> bool {
    matches!(kind, Kind::Lease | Kind::Event | Kind::Role | Kind::RoleBinding)
}
