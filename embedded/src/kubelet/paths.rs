//! Makes the paths of volumes true without mount namespaces: where a container's command, arguments or environment name
//! a mount path, the directory of the volume takes its place.

use std::path::PathBuf;

/// Where the volumes of a container are.
#[derive(Clone, Debug, Default)]
pub(super) struct Mounts {
    /// Mount path and directory, the longest path first.
    pairs: Vec<(String, PathBuf)>,
}

impl Mounts {
    /// Makes them from mount paths and directories.
    pub fn new(mut pairs: Vec<(String, PathBuf)>) -> Self {
        for (path, _) in &mut pairs {
            path.truncate(path.trim_end_matches('/').len());
        }
        pairs.retain(|(path, _)| !path.is_empty());
        pairs.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Self { pairs }
    }

    /// Replaces every mount path that stands in a text as a whole path or as the beginning of one. `/archive` is found
    /// in `/archive`, `--dir=/archive/x` and `ls /archive; true`, not in `/archives` and `/old/archive`.
    pub fn rewrite(&self, text: &str) -> String {
        let mut rewritten = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let within = stands_in_path(text, rest);
            let found = self.pairs.iter().find(|(path, _)| !within && names(rest, path));
            if let Some((path, directory)) = found {
                rewritten.push_str(&directory.display().to_string());
                rest = &rest[path.len()..];
            } else {
                let length = rest.chars().next().map_or(0, char::len_utf8);
                rewritten.push_str(&rest[..length]);
                rest = &rest[length..];
            }
        }
        rewritten
    }
}

/// Whether what stands before `rest` in `text` is a part of the same path.
fn stands_in_path(text: &str, rest: &str) -> bool {
    text[..text.len() - rest.len()].chars().next_back().is_some_and(|before| before == '/' || is_name_char(before))
}

/// Whether a text begins with a path and not with a longer name.
fn names(text: &str, path: &str) -> bool {
    text.strip_prefix(path).is_some_and(|after| !after.chars().next().is_some_and(is_name_char))
}

fn is_name_char(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.')
}

#[cfg(test)]
mod tests {
    use super::Mounts;

    #[test]
    fn mount_paths_are_replaced_where_they_stand_as_paths() {
        let pairs = [("/archive", "/d/a"), ("/opt/kaa/", "/d/k"), ("/archive/inner", "/d/i"), ("/", "/d/root")];
        let mounts = Mounts::new(pairs.map(|(path, directory)| (path.to_owned(), directory.into())).into());
        let cases = [
            ("/archive", "/d/a"),
            ("/archive/", "/d/a/"),
            ("/archive/inner/x", "/d/i/x"),
            ("/opt/kaa/kaa", "/d/k/kaa"),
            ("--dir=/archive", "--dir=/d/a"),
            ("/bin:/opt/kaa:/archive/bin", "/bin:/d/k:/d/a/bin"),
            ("set -e; ls '/archive' >\"/archive/é\"", "set -e; ls '/d/a' >\"/d/a/é\""),
            ("/archives /old/archive x/archive /archive-2", "/archives /old/archive x/archive /archive-2"),
            ("https://host/archive", "https://host/archive"),
            ("", ""),
        ];
        for (before, after) in cases {
            assert_eq!(mounts.rewrite(before), after);
        }
    }
}
