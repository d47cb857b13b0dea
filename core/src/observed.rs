//! What Kubernetes shows, as an index that list and watch events feed.
//!
//! Unknown is not empty: a kind that was not listed completely yet, or may not be listed, says so, and every caller has
//! to handle it. What the index shows may be old, so it is no proof for a removal (see [`crate::resync`]).

pub mod annotations;
pub mod objects;
pub mod replication;

use objects::{Claim, Deployment, Named, Pod, StatefulSet};
use std::collections::BTreeMap;

/// Everything that is watched, in one namespace.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// `apps/v1` StatefulSets.
    pub stateful_sets: Listing<StatefulSet>,
    /// `apps/v1` Deployments.
    pub deployments: Listing<Deployment>,
    /// `v1` Pods.
    pub pods: Listing<Pod>,
    /// `v1` PersistentVolumeClaims.
    pub claims: Listing<Claim>,
}

/// The objects of one kind, as far as they are known.
#[derive(Clone, Debug)]
pub struct Listing<T> {
    /// By name. Empty means nothing unless the listing is complete.
    objects: BTreeMap<String, T>,
    /// A list under way.
    incoming: BTreeMap<String, T>,
    known: Known,
}

/// How much is known of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    No,
    Complete,
    Forbidden(String),
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), incoming: BTreeMap::new(), known: Known::No }
    }
}

/// Why nothing can be said of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// It was not listed completely yet.
    Syncing,
    /// It may not be listed or watched; with the API server's words.
    Forbidden(String),
}

impl<T: Named + PartialEq> Listing<T> {
    /// A new list begins. What was known stays until it is complete.
    pub fn restart(&mut self) {
        self.incoming.clear();
    }

    /// An object of the list that began.
    pub fn list(&mut self, object: T) {
        self.incoming.insert(object.name().to_owned(), object);
    }

    /// The list is complete. Returns whether anything is different from before.
    pub fn complete(&mut self) -> bool {
        let incoming = std::mem::take(&mut self.incoming);
        let changed = self.known != Known::Complete || self.objects != incoming;
        self.objects = incoming;
        self.known = Known::Complete;
        changed
    }

    /// An object was added or changed. Returns whether anything that is kept of it is different from before.
    pub fn apply(&mut self, object: T) -> bool {
        if self.objects.get(object.name()) == Some(&object) {
            return false;
        }
        self.objects.insert(object.name().to_owned(), object);
        true
    }

    /// An object was deleted. Returns whether it was known.
    pub fn delete(&mut self, name: &str) -> bool {
        self.objects.remove(name).is_some()
    }

    /// The kind may not be listed or watched: nothing that was known holds any more. Returns whether that is new.
    pub fn forbid(&mut self, reason: String) -> bool {
        let forbidden = Known::Forbidden(reason);
        if self.known == forbidden {
            return false;
        }
        self.objects.clear();
        self.incoming.clear();
        self.known = forbidden;
        true
    }

    /// The objects by name, or why they are not known.
    pub fn known(&self) -> Result<&BTreeMap<String, T>, Unknown> {
        match &self.known {
            Known::Complete => Ok(&self.objects),
            Known::No => Err(Unknown::Syncing),
            Known::Forbidden(reason) => Err(Unknown::Forbidden(reason.clone())),
        }
    }
}

impl Observed {
    /// Whether every kind that may be listed has been listed completely.
    pub fn is_synced(&self) -> bool {
        let states = [
            self.stateful_sets.known().err(),
            self.deployments.known().err(),
            self.pods.known().err(),
            self.claims.known().err(),
        ];
        !states.contains(&Some(Unknown::Syncing))
    }
}

#[cfg(test)]
mod tests {
    use super::objects::Claim;
    use super::{Listing, Unknown};

    fn claim(name: &str) -> Claim {
        Claim { name: name.to_owned(), uid: "u".into(), deleting: false, database: None }
    }

    #[test]
    fn a_listing_is_unknown_until_it_is_complete() {
        let mut listing = Listing::default();
        assert_eq!(listing.known().err(), Some(Unknown::Syncing));
        listing.restart();
        listing.list(claim("a"));
        assert_eq!(listing.known().err(), Some(Unknown::Syncing));
        assert!(listing.complete());
        assert_eq!(listing.known().map(|known| known.len()), Ok(1));
    }

    #[test]
    fn a_new_list_replaces_the_old_one_only_when_it_is_complete() {
        let mut listing = Listing::default();
        listing.list(claim("a"));
        listing.complete();
        listing.restart();
        assert!(listing.known().is_ok_and(|known| known.contains_key("a")), "a list that began says nothing yet");
        listing.list(claim("b"));
        listing.complete();
        assert!(listing.known().is_ok_and(|known| known.contains_key("b") && !known.contains_key("a")));
    }

    #[test]
    fn what_may_not_be_listed_is_unknown_not_empty() {
        let mut listing = Listing::default();
        listing.list(claim("a"));
        listing.complete();
        assert!(listing.forbid("no list".to_owned()));
        assert_eq!(listing.known().err(), Some(Unknown::Forbidden("no list".to_owned())));
    }
}
