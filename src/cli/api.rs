//! Asks an agent, and says in plain words why there is no answer.

use super::client::{self, Client};
use super::{Agent, Format, Writing, prompt};
use crate::auth::pod_token;
use crate::http::{MAX_LIMIT, Page};
use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::PathBuf;
use url::{Host, Url};

/// The most rows that are read of one collection: beyond this something is wrong with the answers.
const MAX_ROWS: usize = 1_000_000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("'{0}' is not the URL of an agent: it takes the form http://host:port, https://host:port or host:port")]
    NotAUrl(String),
    #[error(transparent)]
    Unready(client::Error),
    #[error("no agent answers at {url}: {source}")]
    NoAnswer { url: String, source: client::Error },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Prompt(#[from] prompt::Error),
    #[error(transparent)]
    PodToken(#[from] pod_token::Error),
    #[error("the server at {url} does not answer like an agent: {why}")]
    Strange { url: String, why: String },
}

/// An agent that can be asked.
pub(super) struct Api {
    client: Client,
    base: Url,
    /// `USER:PASSWORD`.
    credentials: Option<String>,
    /// What is shown instead, if there is nothing else to show.
    pod_token_file: Option<PathBuf>,
}

impl Api {
    pub(super) fn new(agent: &Agent) -> Result<Self, Error> {
        let wrong = || Error::NotAUrl(agent.api_server.clone());
        let typed = agent.api_server.trim();
        let url = if typed.contains("://") { typed.to_owned() } else { format!("http://{typed}") };
        let base = Url::parse(&url).map_err(|_| wrong())?;
        if !["http", "https"].contains(&base.scheme()) || !base.has_host() {
            return Err(wrong());
        }
        let client = Client::new(&base, &agent.tls).map_err(Error::Unready)?;
        Ok(Self { client, base, credentials: None, pod_token_file: None })
    }

    /// The same, saying who asks.
    pub(super) fn by(self, writing: &Writing) -> Self {
        let Writing { basic_creds, pod_token_file } = writing;
        let own_pod = is_loopback(&self.base) && basic_creds.is_none() && !self.client.shows_certificate();
        let pod_token_file = pod_token_file.clone().filter(|_| own_pod);
        Self { credentials: basic_creds.clone(), pod_token_file, ..self }
    }

    /// The same, for answers that take their time.
    pub(super) fn patient(self) -> Self {
        Self { client: self.client.patient(), ..self }
    }

    /// Asks for a change.
    pub(super) async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: Option<Value>,
    ) -> Result<T, Error> {
        let answer = self.send(method, path, &[], body).await?;
        self.understood(answer)
    }

    /// Asks for something to be deleted.
    pub(super) async fn delete<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> Result<T, Error> {
        let answer = self.send(Method::DELETE, path, query, None).await?;
        self.understood(answer)
    }

    /// Asks for one thing.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> Result<T, Error> {
        let answer = self.send(Method::GET, path, query, None).await?;
        self.understood(answer)
    }

    /// Asks for all rows of a collection.
    pub(super) async fn all(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Page, Error> {
        let mut all = Page { data: Vec::new(), has_next: true, max_limit: MAX_LIMIT };
        while all.has_next && all.data.len() < MAX_ROWS {
            let (offset, limit) = (all.data.len().to_string(), MAX_LIMIT.to_string());
            let mut query = query.to_vec();
            query.extend([("offset", offset.as_str()), ("limit", limit.as_str())]);
            let page: Page = self.get(path, &query).await?;
            all.has_next = page.has_next && !page.data.is_empty();
            all.max_limit = page.max_limit;
            all.data.extend(page.data);
        }
        Ok(all)
    }

    /// Asks the agent to log a line, and learns who it is.
    pub(super) async fn log(&self, message: &str) -> Result<Value, Error> {
        self.send(Method::POST, &["diagnostics", "log"], &[], Some(json!({"message": message}))).await
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
        body: Option<Value>,
    ) -> Result<Value, Error> {
        let mut url = self.base.clone();
        let segments = url.path_segments_mut().map_err(|()| Error::NotAUrl(self.base.to_string()));
        segments?.pop_if_empty().extend(["api", "1"]).extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let pod_token = self.pod_token_file.as_deref().map(pod_token::read).transpose()?;
        let authorization = self.credentials.as_ref().or(pod_token.as_ref()).map(|given| {
            // A name alone is one with an empty password.
            let given = if given.contains(':') { given.clone() } else { format!("{given}:") };
            format!("Basic {}", BASE64.encode(given))
        });
        let answer = self.client.send(method, &url, authorization.as_deref(), body.as_ref()).await;
        let client::Answer { status, text } = answer.map_err(|source| no_answer(&self.base, source))?;
        let json: Option<Value> = serde_json::from_str(&text).ok();
        if status.is_success() {
            return json.ok_or_else(|| self.strange("its answer is not JSON"));
        }
        match json.as_ref().and_then(|json| json.get("messages")?.as_array()) {
            Some(messages) => {
                let messages: Vec<&str> = messages.iter().filter_map(Value::as_str).collect();
                Err(Error::Refused(messages.join(": ")))
            }
            None => Err(self.strange(&format!("its answer is {status}"))),
        }
    }

    /// Reads rows or the like out of an answer.
    pub(super) fn understood<T: DeserializeOwned>(&self, answer: Value) -> Result<T, Error> {
        serde_json::from_value(answer).map_err(|error| self.strange(&error.to_string()))
    }

    fn strange(&self, why: &str) -> Error {
        Error::Strange { url: shown(&self.base), why: why.to_owned() }
    }
}

/// Whether only this machine, or this pod, is asked there.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name.eq_ignore_ascii_case("localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).to_canonical().is_loopback(),
        None => false,
    }
}

fn shown(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

fn no_answer(url: &Url, source: client::Error) -> Error {
    Error::NoAnswer { url: shown(url), source }
}

/// An answer in the API's own words.
pub(super) fn raw(answer: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(answer).expect("answers have only texts as keys");
    text.push('\n');
    text
}

impl Agent {
    /// Prints an answer as it was asked for.
    pub(super) fn print<T: Serialize>(&self, answer: &T, text: impl FnOnce(&T) -> String) -> String {
        match self.output {
            Format::Json => raw(answer),
            Format::Text => text(answer),
        }
    }
}
