//! A domain in which nothing has happened yet takes over the databases, archives and values of another one.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits};
use crate::domain::command::Actor;
use crate::domain::event::{DomainEvent, RestoredFrom};
use crate::domain::outcome::Outcome;
use crate::domain::snapshot::{Restore, Restored, Snapshot};
use crate::domain::{Applied, Domain};

impl Change for Restore {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        bounds.restore(self)
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        only_an_operator(actor)?;
        if domain.restored.as_ref().is_some_and(|restored| restored.checksum == self.checksum) {
            return Ok(Outcome::Unchanged);
        }
        domain.may_restore(&self)?;
        let Restore { checksum, cluster, without, snapshot, .. } = self;
        let restored = RestoredFrom {
            name: snapshot.name.clone(),
            domain: snapshot.domain.clone(),
            index: snapshot.index,
            time: snapshot.time,
            checksum: checksum.clone(),
            databases: snapshot.databases.len() as u64,
            archives: (snapshot.archives.len() - without.len()) as u64,
            values: snapshot.values.len() as u64,
            without: without.clone(),
        };
        let Snapshot { domain: origin, databases, archives, values, last_archive, last_start, mut origins, .. } =
            snapshot;
        for (item, manual) in snapshot.load_balancer {
            domain.balancing.change(item, domain.index, |entry| entry.manual = Some(manual));
        }
        let archives = archives.into_iter().filter(|archive| !without.contains(&archive.id));
        domain.databases = databases.into_iter().map(|kept| (kept.name.clone(), kept.into())).collect();
        domain.archives = archives.map(|kept| (kept.id, kept.unbound(cluster.clone()))).collect();
        domain.values = values;
        domain.last_archive = domain.last_archive.max(last_archive);
        domain.last_start = domain.last_start.max(last_start);
        origins.values_mut().for_each(|known| known.retain(|id| domain.archives.contains_key(id)));
        origins.entry(origin).or_default().extend(domain.archives.keys());
        domain.restored = Some(Restored { checksum, origins });
        let databases = domain.databases.keys().cloned().map(Subject::Database);
        let archives = domain.archives.keys().copied().map(Subject::Archive);
        let subjects: Vec<Subject> = [Subject::Domain].into_iter().chain(databases).chain(archives).collect();
        domain.note(actor, subjects, DomainEvent::Restored(restored), None);
        Ok(Outcome::Changed)
    }
}
