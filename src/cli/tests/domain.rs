//! `kaa domain`, whose files are real ones.

use super::super::domain::{Domain, Snapshot};
use super::*;
use crate::http::Document;

/// A server that lives as long as this.
struct Served {
    source: Arc<Fake>,
    address: String,
    server: tokio::task::JoinHandle<()>,
}

impl Served {
    async fn new(fake: Fake) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, source) = (listener.local_addr().unwrap().to_string(), Arc::new(fake));
        let face = Face::new(source.clone(), Arc::new(Metrics::new()));
        let server = tokio::spawn(serve(listener, router(face), None, std::future::pending()));
        Self { source, address, server }
    }

    async fn run(&self, line: &str) -> Result<String, String> {
        let line = ["kaa", "domain", "snapshot"].into_iter().chain(line.split(' '));
        match Cli::try_parse_from(line.chain(["--api-server", &self.address])).unwrap().command {
            Command::Domain(domain) => domain.run().await.map_err(|error| error.to_string()),
            other => unreachable!("{other:?}"),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[tokio::test]
async fn a_domain_is_saved_to_a_file_and_founded_again_from_it() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("kaa.json").display().to_string();
    let (old, new) = (Served::new(fake::source()).await, Served::new(fake::founded_again()).await);
    let mut text = String::new();
    for (on, line) in [
        (&old, "save"),
        (&old, "save FILE"),
        (&old, "save FILE"),
        (&old, "save FILE --force"),
        (&new, "restore FILE --dry-run --without 3"),
        (&old, "restore FILE --yes"),
        (&new, "restore FILE --yes --without 7"),
        (&new, "restore FILE --yes --without 3"),
        (&new, "restore FILE --dry-run"),
        (&new, "restore -"),
        (&new, "restore NOWHERE --yes"),
    ] {
        let nowhere = format!("{file}.gone");
        let done = on.run(&line.replace("FILE", &file).replace("NOWHERE", &nowhere)).await;
        text += &format!("$ kaa domain snapshot {line}\n");
        text += &done.unwrap_or_else(|why| format!("failed: {why}\n"));
    }
    let digits = regex::Regex::new("[0-9a-f]{64}").unwrap();
    let text = digits.replace_all(&text, "SHA256").replace(&file, "FILE").replace("FILE.gone", "NOWHERE");
    golden("domain-snapshot", &text.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    let document = Document::parse(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(document.snapshot, old.source.domain.lock().unwrap().snapshot().unwrap());
    let archives: Vec<u64> = new.source.domain.lock().unwrap().archives.keys().map(|id| id.0).collect();
    assert_eq!(archives, [1, 2]);
}

/// What an operator types decides, and a word that is wrong, or none, leaves everything as it is.
#[tokio::test]
async fn a_domain_is_founded_again_by_its_name_alone() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("kaa.json").display().to_string();
    let (old, new) = (Served::new(fake::source()).await, Served::new(fake::founded_again()).await);
    old.run(&format!("save {file}")).await.unwrap();
    let asked = async |typed: &str| {
        let words = ["kaa", "domain", "snapshot", "restore", &file, "--api-server", &new.address];
        let Command::Domain(Domain::Snapshot(Snapshot::Restore(restore))) = Cli::try_parse_from(words).unwrap().command
        else {
            unreachable!()
        };
        restore.asking(|| Ok(typed.to_owned())).await.map_err(|error| error.to_string())
    };
    for wrong in ["", "\n", "yes\n", "nuod\n", "NUODB\n"] {
        let expected = format!("'{}' is not the name of the domain: nothing was changed", wrong.trim());
        assert_eq!(asked(wrong).await, Err(expected));
        assert!(new.source.domain.lock().unwrap().archives.is_empty(), "{wrong:?}");
    }
    assert!(
        asked("nuodb\n").await.unwrap().starts_with("Domain nuodb (d-2) was restored from domain nuodb (d-1) as of")
    );
    assert!(!new.source.domain.lock().unwrap().archives.is_empty());
}

#[test]
fn what_does_not_go_together_is_not_understood() {
    for wrong in ["restore", "restore f --yes --dry-run", "save f g", "restore f --without x"] {
        let words = ["kaa", "domain", "snapshot"].into_iter().chain(wrong.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_refused_before_any_question() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("kaa.json");
    let (old, path) = (Served::new(fake::source()).await, file.display().to_string());
    old.run(&format!("save {path}")).await.unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    old.server.abort();
    for (damaged, why) in [
        (text[..text.len() / 2].to_owned(), "it is truncated: "),
        (
            text.replace("\"format\": 1", "\"format\": 2"),
            "it is a snapshot of format 2, and this version reads format 1",
        ),
        (text.replace("\"lastStart\": ", "\"lastStart\": 1"), "it was modified or is damaged: "),
    ] {
        std::fs::write(&file, damaged).unwrap();
        for how in ["--dry-run", "--yes"] {
            let error = old.run(&format!("restore {path} {how}")).await.unwrap_err();
            assert!(error.starts_with(&format!("{path} cannot be used: {why}")), "{error}");
        }
    }
}
