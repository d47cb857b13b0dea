//! Clients of the domain's values: what they requested, what the agents answered, and when.

use embedded_kubernetes::instance::Instance;
use embedded_kubernetes::object;
use embedded_kubernetes::resource::Kind;
use kaa::clock;
use reqwest::StatusCode;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::history::{Event, History, Operation, Value};
use tokio::task::JoinSet;

/// The keys. Each key has its own history.
pub const KEYS: [&str; 3] = ["values/a", "values/b", "values/c"];

/// How long a connection may take to open. On one machine it takes a thousandth of that.
const CONNECT: Duration = Duration::from_millis(150);

/// How long an agent may take to answer after all faults have ended.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// How many clients there are, and how often each sends a request.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How many clients write. Each request goes to any of the agents.
    pub writers: usize,
    /// How many clients read. Each request goes to any of the agents.
    pub readers: usize,
    /// How long a client waits for an answer. Agents try for longer than that, so that some outcomes are not known.
    pub patience: Duration,
    /// The longest pause between two requests of a client. The audit trail of a domain holds a few thousand writes.
    pub most_pause_ms: u64,
    /// The name and password of the clients, if agents cannot identify them by the address from which they call.
    pub operator: Option<(&'static str, &'static str)>,
}

/// Returns the name and `http://ADDRESS:PORT/api/1` of each agent.
type Tells = Arc<dyn Fn() -> Vec<(String, String)> + Send + Sync>;

/// The addresses of the agents.
#[derive(Clone)]
pub struct Agents {
    all: Tells,
    /// The agents to which a Service leads, if that is known.
    served: Option<Tells>,
}

impl Agents {
    /// Takes the addresses of the agents from this function.
    pub fn told_by(all: impl Fn() -> Vec<(String, String)> + Send + Sync + 'static) -> Self {
        Self { all: Arc::new(all), served: None }
    }

    /// Every other writer uses a Service, which leads to these agents, as most clients do. The other writers also reach
    /// agents that the Service excludes.
    pub fn served(self, served: impl Fn() -> Vec<(String, String)> + Send + Sync + 'static) -> Self {
        Self { served: Some(Arc::new(served)), ..self }
    }

    /// Takes the addresses from the store of the embedded Kubernetes: faults of its API do not hide them from these
    /// clients.
    pub fn of(instance: Arc<Instance>) -> Self {
        Self::told_by(move || {
            instance.look(|store| {
                let pods = store.list(Kind::Pod, None).filter(|pod| object::name(pod).starts_with("kaa-admin-"));
                let address = |pod: &Arc<serde_json::Value>| match object::text(pod, "/status/podIP") {
                    "" => None,
                    ip => Some((object::name(pod).to_owned(), format!("http://{ip}:8888/api/1"))),
                };
                pods.filter_map(address).collect()
            })
        })
    }

    /// The name and address of each agent.
    pub fn all(&self) -> Vec<(String, String)> {
        (self.all)()
    }

    fn any(&self) -> Option<String> {
        one_of(self.all())
    }

    fn for_writer(&self, writer: usize) -> Option<String> {
        let served = self.served.as_ref().filter(|_| writer.is_multiple_of(2));
        served.and_then(|served| one_of(served())).or_else(|| self.any())
    }
}

fn one_of(agents: Vec<(String, String)>) -> Option<String> {
    let which = clock::random_below(agents.len().max(1) as u64) as usize;
    agents.into_iter().nth(which).map(|(_, address)| address)
}

/// The outcome of a request.
enum Told {
    Done,
    Holds(Value),
    /// The request certainly had no effect, and its answer has no information.
    Nothing,
    Unknown,
}

/// All clients, and the answers that they got.
#[derive(Clone)]
pub struct Clients {
    agents: Agents,
    pace: Pace,
    http: reqwest::Client,
    began: Instant,
    histories: Arc<Mutex<BTreeMap<&'static str, History>>>,
    counts: Arc<Mutex<Counts>>,
    /// When each write was acknowledged.
    commits: Arc<Mutex<Vec<Instant>>>,
    stopping: Arc<AtomicBool>,
    resting: Arc<AtomicBool>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

/// How many operations had each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub acknowledged: u64,
    pub conflicts: u64,
    pub unknown: u64,
    pub refused: u64,
    pub reads: u64,
}

impl Clients {
    /// Starts the clients. Call it in a runtime.
    pub fn start(agents: Agents, pace: Pace) -> Self {
        // The address of a pod that is gone may not answer at all. That time does not count as an outage of the admin
        // servers.
        let http = reqwest::Client::builder().connect_timeout(CONNECT).build().expect("a client");
        let clients = Self {
            agents,
            pace,
            http,
            began: Instant::now(),
            histories: Arc::default(),
            counts: Arc::default(),
            commits: Arc::default(),
            stopping: Arc::default(),
            resting: Arc::default(),
            tasks: Arc::default(),
        };
        let mut tasks = clients.tasks.lock().unwrap();
        for writer in 0..pace.writers {
            let this = clients.clone();
            tasks.spawn(async move { this.write(writer, KEYS[writer % KEYS.len()]).await });
        }
        for reader in 0..pace.readers {
            let this = clients.clone();
            tasks.spawn(async move { this.read(reader).await });
        }
        drop(tasks);
        clients
    }

    /// Stops the clients. Each pending request gets its answer, or its timeout, before anything is judged.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        tasks.join_all().await;
    }

    /// Makes the clients send no requests, or continue. Pending requests still complete.
    pub fn rest(&self, resting: bool) {
        self.resting.store(resting, Ordering::Relaxed);
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The outcomes so far.
    pub fn counts(&self) -> Counts {
        *self.counts.lock().unwrap()
    }

    /// The longest time between `since` and `until` in which no write was acknowledged.
    pub fn longest_silence(&self, since: Instant, until: Instant) -> Duration {
        let commits = self.commits.lock().unwrap();
        let within = commits.iter().copied().filter(|at| (since..until).contains(at));
        let mut moments: Vec<Instant> = within.chain([since, until]).collect();
        moments.sort();
        moments.windows(2).map(|two| two[1] - two[0]).max().unwrap_or_default()
    }

    /// How long ago the last write was acknowledged.
    pub fn silence_now(&self) -> Duration {
        self.commits.lock().unwrap().last().unwrap_or(&self.began).elapsed()
    }

    /// Reads each key from each agent, which must answer, so that the check finds values that are lost at the end.
    pub async fn read_all(&self) {
        for (agent, address) in self.agents.all() {
            for key in KEYS {
                let invoked = self.now();
                let told = self.get(&address, key, AFTERWARDS).await;
                assert!(matches!(told, Told::Holds(_)), "{agent} does not answer although nothing is wrong any more");
                self.note(&format!("last-{agent}"), key, invoked, &None, &None, told);
            }
        }
    }

    /// Judges the recorded histories.
    pub fn check(&self) -> Result<(), String> {
        for (key, history) in self.histories.lock().unwrap().iter() {
            history.check().map_err(|why| format!("{key} is not linearizable: {why}\nall of it:\n{history}"))?;
        }
        Ok(())
    }

    /// Nanoseconds: so that no two moments of one client are equal.
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    async fn pause(&self) {
        tokio::time::sleep(Duration::from_millis(clock::random_below(self.pace.most_pause_ms))).await;
        while self.resting.load(Ordering::Relaxed) && !self.stopping() {
            tokio::time::sleep(Duration::from_millis(self.pace.most_pause_ms)).await;
        }
    }

    async fn write(&self, writer: usize, key: &'static str) {
        let client = format!("w{writer}");
        let mut known: Value = None;
        for number in 0_u64.. {
            if self.stopping() {
                return;
            }
            self.pause().await;
            let Some(address) = self.agents.for_writer(writer) else { continue };
            let (new, invoked) = (Some(format!("{client}-{number}")), self.now());
            let told = self.put(&address, key, &known, &new).await;
            let holds = match &told {
                Told::Done => Some(new.clone()),
                Told::Holds(value) => Some(value.clone()),
                Told::Nothing | Told::Unknown => None,
            };
            self.note(&client, key, invoked, &known, &new, told);
            known = match holds {
                Some(holds) => holds,
                // Any value will do: a write with a wrong expectation is only refused.
                None => self.observe(self.agents.for_writer(writer), &client, key).await.unwrap_or(known),
            };
        }
    }

    async fn read(&self, reader: usize) {
        while !self.stopping() {
            for key in KEYS {
                self.pause().await;
                self.observe(self.agents.any(), &format!("r{reader}"), key).await;
            }
        }
    }

    /// Reads by an agent.
    async fn observe(&self, agent: Option<String>, client: &str, key: &'static str) -> Option<Value> {
        let address = agent?;
        let invoked = self.now();
        let told = self.get(&address, key, self.pace.patience).await;
        let seen = if let Told::Holds(value) = &told { Some(value.clone()) } else { None };
        if seen.is_some() {
            self.counts.lock().unwrap().reads += 1;
        }
        self.note(client, key, invoked, &None, &None, told);
        seen
    }

    /// Records a compare-and-set, or a read if there is no new value.
    fn note(&self, client: &str, key: &'static str, invoked: u64, expected: &Value, new: &Value, told: Told) {
        let completed = Some(self.now());
        let is_read = new.is_none();
        let set = || Operation::Set { expected: expected.clone(), new: new.clone() };
        let mut counts = self.counts.lock().unwrap();
        let count = match &told {
            _ if is_read => &mut 0,
            Told::Done => {
                self.commits.lock().unwrap().push(Instant::now());
                &mut counts.acknowledged
            }
            Told::Holds(_) => &mut counts.conflicts,
            Told::Unknown => &mut counts.unknown,
            Told::Nothing => &mut counts.refused,
        };
        *count += 1;
        let (completed, operation) = match told {
            Told::Done => (completed, set()),
            Told::Holds(value) => (completed, Operation::Observed(value)),
            Told::Unknown if !is_read => (None, set()),
            Told::Unknown | Told::Nothing => return,
        };
        let event = Event { client: client.to_owned(), invoked, completed, operation };
        self.histories.lock().unwrap().entry(key).or_default().push(event);
    }

    async fn put(&self, address: &str, key: &str, expected: &Value, new: &Value) -> Told {
        let mut body = json!({"newValue": new});
        match expected {
            Some(value) => body["expectedValue"] = json!(value),
            None => body["expectedAbsent"] = json!(true),
        }
        let mut request = self.http.put(format!("{address}/kvstore/{key}")).timeout(self.pace.patience).json(&body);
        if let Some((name, password)) = self.pace.operator {
            request = request.basic_auth(name, Some(password));
        }
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) if error.is_connect() => return Told::Nothing,
            Err(_) => return Told::Unknown,
        };
        match answer.status() {
            StatusCode::OK => Told::Done,
            StatusCode::SERVICE_UNAVAILABLE => Told::Nothing,
            StatusCode::CONFLICT => match answer.text().await {
                Ok(text) => Told::Holds(held(&text)),
                Err(_) => Told::Nothing,
            },
            _ => Told::Unknown,
        }
    }

    async fn get(&self, address: &str, key: &str, patience: Duration) -> Told {
        let request = self.http.get(format!("{address}/kvstore/{key}")).timeout(patience);
        let answer = match request.send().await {
            Ok(answer) if answer.status() == StatusCode::OK => answer.json::<serde_json::Value>().await,
            Ok(_) | Err(_) => return Told::Nothing,
        };
        match answer {
            Ok(pair) => Told::Holds(pair["value"].as_str().map(str::to_owned)),
            Err(_) => Told::Nothing,
        }
    }
}

/// Extracts the current value from the sentence that says that it differs from the expected one.
fn held(sentence: &str) -> Value {
    let (_, rest) = sentence.split_once("another value than expected: ").unwrap_or_else(|| panic!("{sentence}"));
    let value = rest.strip_prefix('\'')?;
    Some(value.split('\'').next().unwrap_or_default().to_owned())
}
