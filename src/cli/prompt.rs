//! What an operator is asked before something that cannot be undone. It stands on stderr, where it does not mix with the answer.

use std::io::{BufRead, Write};

/// Why it is not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// There is no terminal to ask on.
    #[error("the terminal fails: {0}")]
    Terminal(#[from] std::io::Error),
    /// Something else was typed, or nothing.
    #[error("'{0}' is not the name of the domain: nothing was changed")]
    NotConfirmed(String),
}

/// Shows something.
pub(super) fn tell(text: &str) -> Result<(), Error> {
    Ok(std::io::stderr().lock().write_all(text.as_bytes())?)
}

/// Shows what would be done and has the domain's name typed, which `typed` reads.
pub(super) fn confirm(
    shown: &str,
    question: &str,
    name: &str,
    typed: impl FnOnce() -> std::io::Result<String>,
) -> Result<(), Error> {
    tell(&format!("{shown}\n{question}, type the name of the domain ({name}): "))?;
    let typed = typed()?;
    let typed = typed.trim();
    if typed == name { Ok(()) } else { Err(Error::NotConfirmed(typed.to_owned())) }
}

/// A line from the terminal.
pub(super) fn line() -> std::io::Result<String> {
    let mut typed = String::new();
    std::io::stdin().lock().read_line(&mut typed).map(|_| typed)
}
