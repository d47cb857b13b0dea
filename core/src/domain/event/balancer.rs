//! What becomes of a load-balancer entry.

use crate::domain::balancing::Object;
use serde::{Deserialize, Serialize};
use std::fmt;
use strum::{IntoStaticStr, VariantNames};

/// What became of a load-balancer entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantNames)]
pub enum LoadBalancerEvent {
    /// An operator set it.
    Set {
        /// The query or filter.
        text: String,
    },
    /// An operator removed what operators had set.
    Removed,
    /// An annotation set it.
    Annotated {
        /// The object that has it.
        object: Object,
        /// The query or filter.
        text: String,
    },
    /// The annotation that had set it is gone.
    AnnotationGone {
        /// The object that had it.
        object: Object,
    },
    /// What an operator had set was removed, since an annotation says that nothing else shall be set.
    Synced {
        /// The StatefulSet that has the annotation.
        stateful_set: String,
    },
}

impl LoadBalancerEvent {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Set { text } => text.len(),
            Self::Removed => 0,
            Self::Annotated { object, text } => object.name().len() + text.len(),
            Self::AnnotationGone { object } => object.name().len(),
            Self::Synced { stateful_set } => stateful_set.len(),
        }
    }
}

impl fmt::Display for LoadBalancerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { text } => write!(f, "set to {text}"),
            Self::Removed => f.write_str("removed, as far as an operator had set it"),
            Self::Annotated { object, text } => write!(f, "set to {text} by an annotation of {object}"),
            Self::AnnotationGone { object } => write!(f, "unset: the annotation of {object} is gone"),
            Self::Synced { stateful_set } => {
                write!(f, "removed what an operator had set: statefulset {stateful_set} syncs fully")
            }
        }
    }
}
