//! The text of `kaa plan --scale ... --delete ...`: what is removed first, then what else happens, then why not more.

use crate::http::{StepRow, WhatIfAnswer};
use std::fmt::Write as _;

/// What would be removed, or why nothing would be.
pub(super) fn what_if(answer: &WhatIfAnswer) -> String {
    let mut text = format!("If {}", answer.changes.join(", and "));
    text += ", and the pods that go with it had exited gracefully:\n\n";
    let (taken, then): (Vec<&StepRow>, Vec<&StepRow>) = answer.steps.iter().partition(|step| step.removes);
    text += if taken.is_empty() { "Nothing would be removed.\n" } else { "Removed:\n" };
    for StepRow { subject, what, anyway, .. } in taken {
        let anyway = if *anyway { " (also without the change)" } else { "" };
        let _ = writeln!(text, "  {subject}: {what}{anyway}");
    }
    if !answer.waiting.is_empty() {
        text += "\nNot removed:\n";
    }
    for waiting in &answer.waiting {
        let _ = writeln!(text, "  {}: {}", waiting.subject, waiting.reason);
    }
    if !then.is_empty() || !answer.notes.is_empty() {
        text += "\nBesides:\n";
    }
    for StepRow { subject, what, anyway, .. } in then {
        let anyway = if *anyway { " (also without the change)" } else { "" };
        let _ = writeln!(text, "  {subject}: {what}{anyway}");
    }
    for note in &answer.notes {
        let _ = writeln!(text, "  {note}");
    }
    let server = answer.server.as_deref().unwrap_or("this agent");
    text + &format!("\nNothing was changed. This is based on the watches of {server}, not on fresh reads.\n")
}
