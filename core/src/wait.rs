//! The reasons to wait, as metrics, the API, `kaa plan` and the reference show them: one row for each reason.

/// A reason to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// It as one word.
    pub code: &'static str,
    /// What it means.
    pub means: &'static str,
    /// What ends it: a command, in backquotes, or that it ends by itself.
    pub ends: &'static str,
}

/// What ends a reason, if a table has it.
pub fn ends(table: &[Wait], code: &str) -> Option<&'static str> {
    table.iter().find(|wait| wait.code == code).map(|wait| wait.ends)
}
