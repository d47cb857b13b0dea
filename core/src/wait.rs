//! The reasons to wait, as metrics, the API, `kaa plan` and the reference show them: one row for each reason.

use crate::domain::ids::ArchiveId;

/// A reason to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// It as one word.
    pub code: &'static str,
    /// What it means.
    pub means: &'static str,
    /// What ends it: a command, in backquotes, or that it ends by itself. It may have placeholders: see [`Names`].
    pub ends: &'static str,
}

/// What the placeholders in [`Wait::ends`] stand for, as far as it is known: `{database}`, `{set}` (a StatefulSet), `{pod}`,
/// `{archive}` and `{container}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names<'a> {
    /// The database.
    pub database: Option<&'a str>,
    /// Its StatefulSet.
    pub set: Option<&'a str>,
    /// The pod that it is about.
    pub pod: Option<&'a str>,
    /// The archive that it is about.
    pub archive: Option<ArchiveId>,
    /// The container that it is about.
    pub container: Option<&'a str>,
}

impl Names<'_> {
    /// A sentence with these names. What is not known is a word in capitals, for the reader to replace.
    pub fn fill(&self, ends: &str) -> String {
        let archive = self.archive.map(|archive| archive.to_string());
        let names = [
            ("{database}", self.database, "NAME"),
            ("{set}", self.set, "SET"),
            ("{pod}", self.pod, "POD"),
            ("{archive}", archive.as_deref(), "ID"),
            ("{container}", self.container, "CONTAINER"),
        ];
        let mut filled = ends.to_owned();
        for (placeholder, name, word) in names {
            filled = filled.replace(placeholder, name.unwrap_or(word));
        }
        filled
    }
}

/// What ends a reason, if a table has it.
pub fn ends(table: &[Wait], code: &str) -> Option<&'static str> {
    table.iter().find(|wait| wait.code == code).map(|wait| wait.ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_whose_name_is_not_known_is_a_word_in_capitals() {
        let ends = "`kaa failover {database} --to {pod} --accept-data-loss {database}`; `kubectl scale statefulset {set}`; archive {archive}";
        let names = Names { database: Some("shop"), archive: Some(ArchiveId(3)), ..Names::default() };
        assert_eq!(
            names.fill(ends),
            "`kaa failover shop --to POD --accept-data-loss shop`; `kubectl scale statefulset SET`; archive 3"
        );
    }
}
