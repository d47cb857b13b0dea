//! Who may connect: the lines of `pg_hba.conf`, Kaa's and the user's own.
//!
//! A server ignores all lines if one is wrong, and stays as closed as it was. So the user's own lines are kept only once the server has
//! accepted them, and what it refuses is left out until the mounted file changes.

use super::configuration::SUPERUSER;
use super::credentials::Known;
use super::error::Error;
use super::mounted::Mounted;
use super::{Settings, files};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admits {
    /// This wrapper alone.
    Wrapper,
    /// Standbys as well.
    Standbys,
    /// Clients and standbys.
    All,
    /// Clients, but no standbys: only the primary is followed.
    Readers,
}

impl Admits {
    fn lets_clients_in(self) -> bool {
        matches!(self, Self::All | Self::Readers)
    }
}

/// The lines of `pg_hba.conf`. The first that matches a connection decides. `own` are the user's.
///
/// The socket is in a directory that only the server's user and root can enter, so who reaches it owns the data anyway.
/// `peer` would not work: it needs an entry in the passwd file for the wrapper's user id, which a pod need not have.
pub(super) fn lines(admits: Admits, settings: &Settings, replication: &Known, own: &str) -> Result<String, Error> {
    let mut lines = format!("local all {SUPERUSER} trust\n");
    let host = if settings.needs_tls() { "hostssl" } else { "host" };
    let role = replication.role.as_ref().map(|role| role.name.replace('"', "\"\""));
    if matches!(admits, Admits::Standbys | Admits::All) {
        let Some(role) = &role else {
            return Err(Error::Unusable(replication.complaint.clone().unwrap_or_default()));
        };
        // `pg_rewind` reads files by SQL.
        let _ = write!(
            lines,
            "{host} replication \"{role}\" all scram-sha-256\n{host} postgres \"{role}\" all scram-sha-256\n"
        );
    }
    if admits.lets_clients_in() {
        let _ = writeln!(lines, "host all {SUPERUSER} all reject");
        // By a line for clients it could stream from a database, past what Kaa has decided above.
        if let Some(role) = &role {
            let _ = writeln!(lines, "host all \"{role}\" all reject");
        }
        let _ = writeln!(lines, "{own}\n{host} all all all scram-sha-256");
    }
    Ok(lines)
}

/// What takes the place of lines that are of no use, until they are mended: they may be there to keep clients out.
const NONE: &str = "host all all all reject";

/// What is known of the user's own lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    /// Those that were written last, if clients are admitted by them.
    pub written: Option<String>,
    /// Those that the server has refused, and why.
    refused: BTreeMap<String, String>,
    /// What was mounted when it refused them. What else is mounted now may be why they are good.
    refused_with: Option<Mounted>,
}

impl Own {
    /// The lines to use, and a sentence if the mounted ones are of no use. Then the last good ones stay, or no client is let in.
    pub fn write(&mut self, settings: &Settings, admits: Admits) -> (String, Option<String>) {
        self.written = None;
        let Some(path) = &settings.hba else {
            // It would count again once there are lines which are of no use.
            if let Err(error) = files::remove(&kept(settings)) {
                tracing::warn!(%error, "the lines of pg_hba.conf that were good last are still there");
            }
            return (String::new(), None);
        };
        if self.refused_with.as_ref().is_some_and(|with| *with != settings.mounted()) {
            (self.refused, self.refused_with) = (BTreeMap::new(), None);
        }
        let mounted = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let mounted = mounted.and_then(|text| check(&text).map(|()| text));
        let wrong = match &mounted {
            Ok(text) => self.refused.get(text).cloned(),
            Err(why) => Some(why.clone()),
        };
        let Some(why) = wrong else {
            let text = mounted.unwrap_or_default();
            self.written = Some(text.clone()).filter(|_| admits.lets_clients_in());
            return (text, None);
        };
        // One that cannot be read is as none: it must not keep a server from its role.
        let good = files::read(&kept(settings)).ok().flatten();
        let good = good.filter(|text| check(text).is_ok() && !self.refused.contains_key(text));
        let meanwhile =
            if good.is_some() { "the last good ones stay" } else { "no client is let in before they are good" };
        let used = good.unwrap_or_else(|| NONE.to_owned());
        self.written = Some(used.clone()).filter(|used| admits.lets_clients_in() && used != NONE);
        (used, Some(format!("the mounted lines of pg_hba.conf are not used: {why}; {meanwhile}")))
    }

    /// The server ignores what was written. Says whether the user's own lines may be why: they are not written again.
    pub fn refuse(&mut self, settings: &Settings, why: &str) -> bool {
        let Some(text) = self.written.take() else { return false };
        tracing::error!(why, "the server refuses the user's own lines of pg_hba.conf");
        self.refused.insert(text, format!("the server refuses them: {why}"));
        self.refused_with = Some(settings.mounted());
        true
    }
}

/// Keeps lines that the server uses.
pub(super) fn keep(settings: &Settings, text: &str) -> Result<(), Error> {
    let path = kept(settings);
    let is_kept = files::read(&path).is_ok_and(|kept| kept.as_deref() == Some(text));
    if is_kept { Ok(()) } else { files::replace(&path, text.as_bytes(), settings.user) }
}

/// The last lines that the server has accepted. They are a part of the data, so that a copy has them from the first moment.
fn kept(settings: &Settings) -> PathBuf {
    settings.pgdata().join("kaa_hba.conf")
}

/// What may be at the beginning of a line. `local` is this wrapper's way in.
const TYPES: [&str; 5] = ["host", "hostssl", "hostnossl", "hostgssenc", "hostnogssenc"];

/// Refuses what would let in more than clients of databases, reads other files, or holds up a server whose role changes. The rest is for
/// the server to judge.
fn check(text: &str) -> Result<(), String> {
    for (line, number) in text.lines().zip(1..) {
        let wrong = |why: &str| Err(format!("line {number}: {why}"));
        // The server and this wrapper could see other fields in it.
        if line.contains(|it: char| it.is_ascii_control() && it != '\t') {
            return wrong("it has a control character");
        }
        if line.trim_end().ends_with('\\') {
            return wrong("it has to end in one line");
        }
        let fields = fields(line);
        let Some(first) = fields.first() else { continue };
        if !matches!(&first[..], [word] if TYPES.contains(&word.text.as_str())) {
            return wrong("it has to begin with host, hostssl, hostnossl, hostgssenc or hostnogssenc");
        }
        if fields.get(1).into_iter().flatten().any(|word| word.text == "replication" && !word.quoted) {
            return wrong("Kaa decides who replicates");
        }
        if fields.iter().flatten().any(|word| word.text.starts_with('@') && !word.quoted) {
            return wrong("names in another file are not supported");
        }
        if !fields.get(3).into_iter().flatten().all(is_address) {
            return wrong(
                "its address has to be in numbers, or all, samehost or samenet: a client would wait for the name service",
            );
        }
    }
    Ok(())
}

/// Whether it is no name of a host. A session that is let in by a name waits for the name service, and so does the end of that session.
fn is_address(Word { text, quoted }: &Word) -> bool {
    let address = text.split_once('/').map_or(text.as_str(), |(address, _)| address);
    (!quoted && ["all", "samehost", "samenet"].contains(&text.as_str())) || address.parse::<IpAddr>().is_ok()
}

/// One of the words of a field that are separated by commas.
#[derive(Debug, Default, PartialEq, Eq)]
struct Word {
    text: String,
    /// Whether it begins with a quote: then it is no keyword.
    quoted: bool,
}

/// The fields of a line, as the server reads them: a comma continues a field, also before blanks; quotes take all but a quote.
fn fields(line: &str) -> Vec<Vec<Word>> {
    let (mut fields, mut rest, mut continued) = (Vec::<Vec<Word>>::new(), line.chars().peekable(), false);
    let is_blank = |it: &char| matches!(it, ' ' | '\t');
    loop {
        while rest.next_if(|it| is_blank(it) || *it == ',').is_some() {}
        if rest.peek().is_none_or(|it| *it == '#') {
            return fields;
        }
        let mut word = Word { quoted: rest.peek() == Some(&'"'), ..Word::default() };
        let mut inside = false;
        while let Some(next) = rest.next_if(|it| inside || !(is_blank(it) || matches!(it, ',' | '#'))) {
            match next {
                '"' => inside = !inside,
                other => word.text.push(other),
            }
        }
        match fields.last_mut().filter(|_| continued) {
            Some(field) => field.push(word),
            None => fields.push(vec![word]),
        }
        continued = rest.peek() == Some(&',');
    }
}

#[cfg(test)]
mod tests {
    use super::super::credentials::Replication;
    use super::*;

    #[test]
    fn the_replication_role_enters_only_by_the_lines_of_kaa() {
        let volume = tempfile::tempdir().unwrap();
        let role = Replication { name: "re\"plicator".to_owned(), password: String::new() };
        let known = Known { role: Some(role), complaint: None };
        let own = "host all all all trust";
        let of = |admits| lines(admits, &Settings::of_test(volume.path()), &known, own).unwrap();
        let reject = "host all \"re\"\"plicator\" all reject\n";
        for admits in [Admits::All, Admits::Readers] {
            let text = of(admits);
            assert!(text.find(reject).unwrap() < text.find(own).unwrap(), "{text}");
        }
        assert!(of(Admits::All).find("host postgres \"re").unwrap() < of(Admits::All).find(reject).unwrap());
        assert!([Admits::Wrapper, Admits::Standbys].iter().all(|admits| !of(*admits).contains(own)));
    }

    #[test]
    fn lines_of_no_use_let_no_client_in_unless_earlier_ones_were_good() {
        let volume = tempfile::tempdir().unwrap();
        let file = volume.path().join("hba.conf");
        let settings = Settings { hba: Some(file.clone()), ..Settings::of_test(volume.path()) };
        std::fs::create_dir(settings.pgdata()).unwrap();
        let mut own = Own::default();
        let (used, complaint) = own.write(&settings, Admits::All);
        assert_eq!(used, NONE);
        assert!(complaint.unwrap().ends_with("no client is let in before they are good"));
        std::fs::write(&file, "host all all 10.0.0.0/8 cert").unwrap();
        assert_eq!(own.write(&settings, Admits::All), ("host all all 10.0.0.0/8 cert".to_owned(), None));
        assert!(own.refuse(&settings, "no TLS"));
        let (used, complaint) = own.write(&settings, Admits::All);
        assert_eq!(used, NONE);
        assert!(complaint.unwrap().contains("the server refuses them: no TLS"));
        // Something else that is mounted was why.
        std::fs::create_dir(volume.path().join("secret")).unwrap();
        std::fs::write(volume.path().join("secret/username"), "replicator").unwrap();
        let settings = Settings { replication: volume.path().join("secret"), ..settings };
        assert_eq!(own.write(&settings, Admits::All).1, None);
        keep(&settings, &own.written.take().unwrap()).unwrap();
        std::fs::write(&file, "local all all trust").unwrap();
        assert_eq!(own.write(&settings, Admits::All).0, "host all all 10.0.0.0/8 cert");
        // What was good last counts no more once there were none.
        own.write(&Settings { hba: None, ..settings.clone() }, Admits::All);
        assert_eq!(own.write(&settings, Admits::All).0, NONE);
        std::fs::write(kept(&settings), [0xff]).unwrap();
        assert_eq!(own.write(&settings, Admits::All).0, NONE, "what cannot be read is as none");
    }

    #[test]
    fn lines_for_clients_are_taken_and_others_are_named() {
        let taken = "# ours\n\nhostssl all all 10.0.0.0/8 cert\nhost shop,\"replication\" +staff ::1/128 ldap ldapserver=x\n\
                     host replication_log all all reject # replication\n";
        assert_eq!(check(taken), Ok(()));
        for (text, why) in [
            ("host all all all md5\nlocal all all trust", "line 2: it has to begin with host,"),
            ("include other.conf", "line 1: it has to begin with host,"),
            ("\"host\",local all all all trust", "line 1: it has to begin with host,"),
            ("host replication all all trust", "line 1: Kaa decides who replicates"),
            ("host all,replication all all trust", "line 1: Kaa decides who replicates"),
            ("host all, rep\"lication\" all all trust", "line 1: Kaa decides who replicates"),
            ("host ,replication all all trust", "line 1: Kaa decides who replicates"),
            ("host @databases all all md5", "line 1: names in another file are not supported"),
            ("host all x,@users all md5", "line 1: names in another file are not supported"),
            ("host all all @addresses md5", "line 1: names in another file are not supported"),
            ("host all all all @methods", "line 1: names in another file are not supported"),
            ("host all all db.example.com md5", "line 1: its address has to be in numbers"),
            ("host all all \"samehost\" md5", "line 1: its address has to be in numbers"),
            ("host all all .example.com md5", "line 1: its address has to be in numbers"),
            ("host all \\\n all all md5", "line 1: it has to end in one line"),
            // What would be a blank here, and a part of a word there; and the end of a line there.
            ("host all\x0c,replication all all trust", "line 1: it has a control character"),
            ("host all all\rreplication all trust", "line 1: it has a control character"),
            ("host \"\0\"", "line 1: it has a control character"),
        ] {
            let refused = check(text).expect_err(text);
            assert!(refused.starts_with(why), "{text:?}: {refused}");
        }
    }
}
