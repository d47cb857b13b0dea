//! A client sets or deletes a value, if it is what the client expects.

use super::Change;
use crate::domain::audit::Subject;
use crate::domain::bounds::{Bounds, Fits, fits};
use crate::domain::command::{Actor, Expected};
use crate::domain::event::ValueEvent;
use crate::domain::outcome::{Outcome, Refusal};
use crate::domain::{Applied, CLAIMS_PREFIX, Domain};
use serde::{Deserialize, Serialize};

/// Sets or deletes a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetValue {
    /// Its key.
    pub key: String,
    /// The new value; `None` deletes it.
    pub value: Option<String>,
    /// What it must be now.
    pub expected: Expected,
}

impl Change for SetValue {
    fn fit(&mut self, bounds: &Bounds) -> Fits {
        let Self { key, value, expected } = self;
        fits("the key", key, bounds.key)?;
        let expected = if let Expected::Value(value) = expected { Some(&*value) } else { None };
        value.as_ref().into_iter().chain(expected).try_for_each(|value| fits("the value", value, bounds.value))
    }

    fn apply(self, domain: &mut Domain, actor: &Actor) -> Applied {
        let Self { key, value, expected } = self;
        let current = domain.values.get(&key);
        let as_expected = match &expected {
            Expected::Anything => true,
            Expected::Absent => current.is_none(),
            Expected::Value(wanted) => current == Some(wanted),
        };
        if !as_expected {
            return Err(Refusal::AnotherValue(current.cloned()));
        }
        if current == value.as_ref() {
            return Ok(Outcome::Unchanged);
        }
        if let Some(value) = &value {
            if current.is_none() {
                // What the domain writes there itself comes with archives, which are counted.
                let others = domain.values.keys().filter(|key| !key.starts_with(CLAIMS_PREFIX)).count();
                domain.may_add("values", others, domain.bounds.values)?;
            }
            let more = (64 + key.len() + value.len()).saturating_sub(current.map_or(0, |it| 64 + key.len() + it.len()));
            domain.may_grow_values(more)?;
        }
        let event = if value.is_some() { ValueEvent::Set } else { ValueEvent::Deleted };
        domain.note(actor, [Subject::Value(key.clone())], event, None);
        match value {
            Some(value) => domain.values.insert(key, value),
            None => domain.values.remove(&key),
        };
        Ok(Outcome::Changed)
    }
}
