//! Masks that replace values which differ from run to run, before texts are compared.

use regex::Regex;

/// A pattern, and the text that replaces it.
const MASKS: [(&str, &str); 13] = [
    (r"server time: [^,]+, client token: \w+", "server time: <time>, client token: <token>"),
    (r"server version: [^,]+,", "server version: <version>,"),
    (r"\[last_ack = [^\]]+\]", "[last_ack = <s>]"),
    (r"\[pid = \d+\]", "[pid = <n>]"),
    (r"\[server_id = [^\]]+\]", "[server_id = <server>]"),
    (r"\[raft_state = \w+\]", "[raft_state = <state>]"),
    (
        r"\((LEADER|FOLLOWER), Leader=[^,]+, log=[\d/]+, applied=\d+, epoch=\d+\)",
        "(<role>, Leader=<server>, log=<log>)",
    ),
    (r"\d+\.\d+\.\d+\.\d+", "<ip>"),
    (r"te-demo-[a-z0-9]+-[a-z0-9]+", "te-demo-<pod>"),
    (r"\.kaa-e2e-[a-z0-9-]+\.svc", ".<namespace>.svc"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+0000)", "<time>"),
    (r" : /\S+ @ ", " : <path> @ "),
    (r" \*\n", "\n"),
];

/// The text with its volatile parts masked.
pub fn mask(text: &str) -> String {
    let mut text = text.to_owned();
    for (pattern, stand_in) in MASKS {
        text = Regex::new(pattern).unwrap().replace_all(&text, stand_in).into_owned();
    }
    text
}
