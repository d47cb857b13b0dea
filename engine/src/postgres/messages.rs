//! What a server prints, and what it means.

/// What a server prints when its data is consistent. Nothing else tells this of one that accepts no session.
pub(super) const CONSISTENT: &str = "consistent recovery state reached";

/// What comes before each message of a server: a process, and its kind. Nothing in it is chosen by a client. Lines within a message begin
/// with a tab, unless several processes write more at once than a pipe takes.
pub(super) const LINE_PREFIX: &str = "%p %b ";

/// The level of a line and its message, if a process of this kind has printed it.
pub(super) fn said_by<'a>(kind: &str, line: &'a str) -> Option<(&'a str, &'a str)> {
    let (pid, rest) = line.split_once(' ')?;
    let (level, message) = rest.strip_prefix(kind)?.strip_prefix(' ')?.split_once(":  ")?;
    let is_line = pid.bytes().all(|byte| byte.is_ascii_digit()) && level.bytes().all(|byte| byte.is_ascii_uppercase());
    is_line.then_some((level, message))
}

/// Why a receiver of the log ended.
pub(super) fn failure_of_receiver(line: &str) -> Option<&str> {
    let failures = [
        // From PostgreSQL 18 on it names itself before this.
        "could not connect to the primary server: ",
        "could not receive timeline history file from the primary server: ",
        "could not receive data from WAL stream: ",
        "could not start WAL streaming: ",
        "could not send data to WAL stream: ",
    ];
    let (_, message) = said_by("walreceiver", line)?;
    failures.iter().find_map(|failure| message.split_once(failure)).map(|(_, why)| why.trim())
}

/// What a server prints when a client cancels the wait of its commit for the rule. Where the session ends instead, the client has no
/// answer.
pub(super) const CANCELLED_WAIT: &str = "canceling wait for synchronous replication due to user request";

/// What a standby prints of a client that wants what only a primary does. Nothing that a client sends begins a line.
const ONLY_AT_PRIMARY: [(&str, &str); 4] = [
    ("cannot execute ", " in a read-only transaction"),
    ("cannot execute ", " during recovery"),
    ("cannot set transaction read-write mode during recovery", ""),
    ("cannot use serializable mode in a hot standby", ""),
];

/// Whether a line of a server may say why it ends: not those of sessions and of receivers, which end by themselves, but for a panic.
pub(super) fn is_last_word(line: &str) -> bool {
    let ends_alone =
        ["walreceiver", "walsender", "client backend"].into_iter().any(|kind| said_by(kind, line).is_some());
    line.contains("PANIC") || (line.contains("FATAL") && !ends_alone)
}

/// The process of a client that tried to write where that is not possible.
pub(super) fn misled(line: &str) -> Option<i32> {
    let (level, message) = said_by("client backend", line)?;
    let writes = ONLY_AT_PRIMARY.iter().any(|(begin, end)| message.starts_with(begin) && message.ends_with(end));
    if level == "ERROR" && writes { line.split(' ').next()?.parse().ok() } else { None }
}

/// What a standby that lets readers in prints when it pauses its replay before a record of the primary that has greater values. Resumed, it ends.
pub(super) const LOW_LIMITS: &str = "hot standby is not possible because of insufficient parameter settings";

/// What a server prints every ten seconds while it flushes its data, after a crash, before it recovers.
pub(super) const FLUSHES: &str = "syncing data directory";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_server_ends_is_not_what_ended_a_session_or_a_receiver() {
        let lines = [
            "7 startup FATAL:  recovery aborted because of insufficient parameter settings",
            "8 walreceiver FATAL:  could not connect to the primary server",
            "9 client backend FATAL:  the database system is shutting down",
            "9 client backend PANIC:  could not write to file",
        ];
        assert_eq!(lines.map(is_last_word), [true, false, false, true]);
    }
}
