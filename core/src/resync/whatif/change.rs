//! What an operator might do with `kubectl`, as `kaa plan` and the REST API take it: `statefulset/NAME=N`, `pvc/NAME`.

use std::fmt;
use std::str::FromStr;

/// The most replicas that can be asked about. More than this is a typing error, and each costs time.
const MOST_REPLICAS: u32 = 1000;

/// One hypothetical change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `kubectl scale`.
    Scale(Scale),
    /// `kubectl delete`.
    Delete(Delete),
}

/// A workload with another number of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// What it is.
    pub workload: Workload,
    /// Its name.
    pub name: String,
    /// How many replicas it would have.
    pub replicas: u32,
}

/// What can be scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Of storage managers, or of admin servers.
    StatefulSet,
    /// Of transaction engines.
    Deployment,
}

/// An object that is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// What it is.
    pub kind: Deletable,
    /// Its name.
    pub name: String,
}

/// What can be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletable {
    /// A PersistentVolumeClaim.
    Claim,
    /// A Pod.
    Pod,
}

/// A text that names no change.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAChange {
    /// It is none that scales.
    #[error("'{0}' is not statefulset/NAME=N or deployment/NAME=N")]
    Scale(String),
    /// It scales to something else than a number that can be asked about.
    #[error("'{text}' scales to '{replicas}', which is not a number from 0 to {MOST_REPLICAS}")]
    Replicas {
        /// The text.
        text: String,
        /// What stands where the number should.
        replicas: String,
    },
    /// It is none that deletes.
    #[error("'{0}' is not pvc/NAME or pod/NAME")]
    Delete(String),
}

impl FromStr for Scale {
    type Err = NotAChange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NotAChange::Scale(text.to_owned());
        let (target, number) = text.split_once('=').ok_or_else(wrong)?;
        let (kind, name) = target.split_once('/').filter(|(_, name)| is_name(name)).ok_or_else(wrong)?;
        let workload = match kind {
            "statefulset" | "sts" => Workload::StatefulSet,
            "deployment" | "deploy" => Workload::Deployment,
            _ => return Err(wrong()),
        };
        let replicas = number.parse().ok().filter(|replicas| *replicas <= MOST_REPLICAS);
        let replicas =
            replicas.ok_or_else(|| NotAChange::Replicas { text: text.to_owned(), replicas: number.to_owned() })?;
        Ok(Self { workload, name: name.to_owned(), replicas })
    }
}

impl FromStr for Delete {
    type Err = NotAChange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || NotAChange::Delete(text.to_owned());
        let (kind, name) = text.split_once('/').filter(|(_, name)| is_name(name)).ok_or_else(wrong)?;
        let kind = match kind {
            "pvc" | "persistentvolumeclaim" => Deletable::Claim,
            "pod" => Deletable::Pod,
            _ => return Err(wrong()),
        };
        Ok(Self { kind, name: name.to_owned() })
    }
}

/// Whether Kubernetes would accept it as a name, roughly: the plan looks up a name that passes anyway.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StatefulSet => "statefulset",
            Self::Deployment => "deployment",
        })
    }
}

impl fmt::Display for Deletable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claim => "pvc",
            Self::Pod => "pod",
        })
    }
}

/// As it is typed.
impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}={}", self.workload, self.name, self.replicas)
    }
}

/// As it is typed.
impl fmt::Display for Delete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// As the condition of a sentence.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scale(Scale { workload, name, replicas }) => {
                write!(f, "{workload}/{name} had {replicas} replica{}", if *replicas == 1 { "" } else { "s" })
            }
            Self::Delete(delete) => write!(f, "{delete} was deleted"),
        }
    }
}

impl Change {
    /// What it changes, as `kubectl` would name it.
    pub fn target(&self) -> String {
        match self {
            Self::Scale(Scale { workload, name, .. }) => format!("{workload}/{name}"),
            Self::Delete(delete) => delete.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Delete, Scale};

    #[test]
    fn what_is_typed_is_understood_or_named() {
        for (typed, means) in [("statefulset/sm=0", "statefulset/sm=0"), ("sts/a.b-1=2", "statefulset/a.b-1=2")] {
            assert_eq!(typed.parse::<Scale>().map(|scale| scale.to_string()).as_deref(), Ok(means));
        }
        assert_eq!(
            "persistentvolumeclaim/x".parse::<Delete>().map(|delete| delete.to_string()).as_deref(),
            Ok("pvc/x")
        );
        let scale =
            |text: &str| text.parse::<Scale>().map_or_else(|wrong| wrong.to_string(), |scale| scale.to_string());
        for wrong in
            ["", "sm=1", "statefulset/sm", "statefulset/=1", "job/sm=1", "statefulset/a/b=1", "statefulset/a b=1"]
        {
            assert_eq!(scale(wrong), format!("'{wrong}' is not statefulset/NAME=N or deployment/NAME=N"));
        }
        for number in ["", "-1", "1001", "two", "1=1", "99999999999"] {
            let text = format!("statefulset/sm={number}");
            let wrong = format!("'{text}' scales to '{number}', which is not a number from 0 to 1000");
            assert_eq!(scale(&text), wrong);
        }
        for wrong in ["", "pvc", "pvc/", "statefulset/sm", "pvc/a=1"] {
            let message = wrong.parse::<Delete>().map_err(|wrong| wrong.to_string());
            assert_eq!(message, Err(format!("'{wrong}' is not pvc/NAME or pod/NAME")));
        }
    }
}
