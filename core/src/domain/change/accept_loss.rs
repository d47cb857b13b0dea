//! An operator gave up what only lost servers may have held: kept in the audit trail, once for each epoch.

use super::Change;
use super::guard::only_an_operator;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, cut};
use crate::domain::command::Actor;
use crate::domain::event::DomainEvent;
use crate::domain::ids::{MembershipEpoch, Millis, ServerId};
use crate::domain::outcome::Outcome;
use crate::domain::{Applied, Domain};
use serde::{Deserialize, Serialize};

/// Notes that an operator gave up what only others may have held, so that this epoch was founded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptLoss {
    /// The epoch.
    pub epoch: MembershipEpoch,
    /// The server whose log founded it.
    pub founder: ServerId,
    /// When the operator said so.
    pub at: Millis,
    /// What the operator was told would be lost.
    pub lost: String,
}

impl Change for AcceptLoss {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { epoch: _, founder: _, at: _, lost } = self;
        cut(lost, bounds.text);
        Ok(())
    }

    /// Once for each epoch, even if several leaders propose it.
    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { epoch, founder, at, lost } = self;
        only_an_operator(actor)?;
        if epoch <= domain.lossy_epoch {
            return Ok(Outcome::Unchanged);
        }
        domain.lossy_epoch = epoch;
        for replicated in domain.databases.values_mut().filter_map(|database| database.replicated.as_mut()) {
            if replicated.record.is_some() {
                replicated.uncertain = Some(format!("entries of the domain were lost in epoch {epoch}"));
            }
        }
        let accepted = DomainEvent::LossAccepted { epoch, founder: founder.clone(), at, lost };
        domain.note(actor, [Subject::Domain, Subject::Server(founder)], accepted, None);
        Ok(Outcome::Changed)
    }
}
