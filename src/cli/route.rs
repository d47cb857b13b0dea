//! `kaa route`: which process a client is sent to, and for each other one why not.

use super::Agent;
use super::api::{Api, Error};
use crate::http::RouteAnswer;
use crate::http::rows::DatabaseRow;
use clap::Args;
use serde_json::Value;
use std::fmt::Write as _;

/// `kaa route`.
#[derive(Debug, Args)]
pub(super) struct Route {
    /// The query of the client, such as 'random(label(zone ${zone}))'; without one, the query that the client gets by its
    /// properties and by what is set
    query: Option<String>,
    /// The database; it need not be given if there is only one
    #[arg(long, value_name = "NAME")]
    db_name: Option<String>,
    /// A connection property of the client; can be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = property)]
    property: Vec<(String, String)>,
    #[command(flatten)]
    agent: Agent,
}

fn property(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("it takes the form KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Route {
    pub(super) async fn run(self) -> Result<String, Error> {
        let api = Api::new(&self.agent)?;
        let database = match self.db_name {
            Some(name) => name,
            None => only_one(api.all(&["databases"], &[]).await?.data)?,
        };
        let query = self.query.iter().map(|query| ("LBQuery", query.as_str()));
        let properties = self.property.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let asked: Vec<(&str, &str)> = properties.chain(query).collect();
        let answer: RouteAnswer = api.get(&["kaa", "route", &database], &asked).await?;
        Ok(self.agent.print(&answer, routed))
    }
}

fn only_one(databases: Vec<Value>) -> Result<String, Error> {
    let rows = databases.into_iter().filter_map(|row| serde_json::from_value::<DatabaseRow>(row).ok());
    let mut names = rows.filter(|row| row.state != "TOMBSTONE").map(|row| row.name);
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name),
        (None, _) => Err(Error::Refused("there is no database".to_owned())),
        _ => Err(Error::Refused("there are several databases: name one with --db-name".to_owned())),
    }
}

/// The text of `kaa route`.
pub(super) fn routed(answer: &RouteAnswer) -> String {
    let mut text = format!("{}: {}\n", answer.origin, answer.query);
    if !answer.processes.iter().any(|row| row.chosen) {
        let _ = writeln!(text, "no process of database {} is suitable", answer.database);
    }
    for row in &answer.processes {
        let pod = row.pod.as_ref().map_or(String::new(), |pod| format!(" ({pod})"));
        let _ = writeln!(text, "{}{pod}: {}", row.start_id, row.why);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::VerdictRow;

    #[test]
    fn each_process_has_its_reason() {
        let row = |id: &str, chosen, why: &str| VerdictRow {
            start_id: id.to_owned(),
            pod: Some(format!("te-{id}")),
            chosen,
            why: why.to_owned(),
        };
        let mut answer = RouteAnswer {
            database: "demo".to_owned(),
            query: "random(any)".to_owned(),
            origin: "the built-in default".to_owned(),
            processes: vec![row("1", false, "not offered: it is a storage manager"), row("2", true, "chosen")],
        };
        let text =
            "the built-in default: random(any)\n1 (te-1): not offered: it is a storage manager\n2 (te-2): chosen\n";
        assert_eq!(routed(&answer), text);
        answer.processes.pop();
        assert!(routed(&answer).contains("no process of database demo is suitable"));
        assert_eq!(property("zone=a=b"), Ok(("zone".to_owned(), "a=b".to_owned())));
        assert!(property("zone").is_err() && property("=x").is_err());
    }
}
