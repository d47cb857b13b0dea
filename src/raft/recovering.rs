//! An operator's `kaa recover`, passed to the task that holds the volume, whether its Raft runs or not.

use super::server::Host;
use super::volume::Extent;
use crate::proto::raft::{RecoverReply, RecoverRequest};
use kaa_core::domain::ids::{MembershipEpoch, Millis};
use std::sync::PoisonError;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long one question may take: the API gives no request longer than 20 s.
pub const RECOVER_TIMEOUT: Duration = Duration::from_secs(15);

/// How many may be asked at a time.
const QUESTIONS: usize = 4;

/// What an operator wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Who accepts that something is lost; `None` to be shown it only.
    pub accepted_by: Option<String>,
    /// The retired log to found from, `SERVER/NAME`; `None` for the logs that the servers use.
    pub from_retired_log: Option<String>,
}

/// By which way a question came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// An operator asks this agent.
    Asked,
    /// Another agent passed it on: this one has the log that it is about.
    PassedOn,
    /// Another agent only wants to know which logs were retired here.
    Listing,
}

/// A question, and where its answer goes.
#[derive(Debug)]
pub struct Question {
    /// What is wanted.
    pub wish: Wish,
    /// By which way it came.
    pub way: Way,
    /// The answer, in JSON, or why there is none.
    pub answer: oneshot::Sender<Result<String, String>>,
}

/// Where questions go.
pub type Questions = mpsc::Sender<Question>;

/// Makes a way for questions.
pub fn questions() -> (Questions, mpsc::Receiver<Question>) {
    mpsc::channel(QUESTIONS)
}

/// Asks, and waits for the answer for as long as is sensible.
pub async fn ask(questions: &Questions, wish: Wish, way: Way) -> Result<String, String> {
    let (answer, answered) = oneshot::channel();
    let busy = |_| "this agent is busy with other recover requests, or is stopping".to_owned();
    questions.try_send(Question { wish, way, answer }).map_err(busy)?;
    match tokio::time::timeout(RECOVER_TIMEOUT, answered).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err("this agent is stopping".to_owned()),
        Err(_) => Err(format!("there was no answer within {} s", RECOVER_TIMEOUT.as_secs())),
    }
}

/// That an operator gives up what only others may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    /// In which epoch.
    pub epoch: MembershipEpoch,
    /// Who, as the audit trail names them.
    pub by: String,
    /// When.
    pub at: Millis,
    /// It does not hold forever: the others may come back, and commit.
    pub until: Instant,
}

/// How it stands with it.
#[derive(Clone, Debug, Default)]
pub enum Accepting {
    /// There is no request.
    #[default]
    No,
    /// It shall be done.
    Asked(Acceptance),
    /// The anchor is of this epoch now, and what is given up.
    Swapped(MembershipEpoch, String),
    /// It was not done, and why.
    Failed(String),
}

impl Host {
    /// Has other agents' questions go there from now on.
    pub fn set_questions(&self, questions: Questions) {
        *self.questions().lock().unwrap_or_else(PoisonError::into_inner) = Some(questions);
    }

    /// Has the log sealed by an operator's command, and the override continue without what others may hold.
    pub fn accept_loss(&self, acceptance: Acceptance) {
        self.accepting().send_replace(Accepting::Asked(acceptance));
        let by = format!("an operator at {}", self.server());
        self.ask_to_seal(by);
    }

    /// What an operator has accepted for this epoch, while it holds.
    pub fn accepted(&self, epoch: MembershipEpoch) -> Option<Acceptance> {
        match &*self.accepting().borrow() {
            Accepting::Asked(acceptance) if acceptance.epoch == epoch && Instant::now() < acceptance.until => {
                Some(acceptance.clone())
            }
            _ => None,
        }
    }

    /// Says what became of what an operator has accepted.
    pub fn recovered(&self, outcome: Accepting) {
        self.accepting().send_replace(outcome);
    }

    /// Waits for that outcome.
    pub async fn recovery(&self) -> Result<(MembershipEpoch, String), String> {
        let mut accepting = self.accepting().subscribe();
        let over = accepting.wait_for(|accepting| !matches!(accepting, Accepting::Asked(_))).await;
        match over.map(|over| over.clone()) {
            Ok(Accepting::Swapped(epoch, lost)) => Ok((epoch, lost)),
            Ok(Accepting::Failed(why)) => Err(why),
            // The sender lives in `self`.
            Ok(Accepting::No | Accepting::Asked(_)) | Err(_) => Err("there is no such request".to_owned()),
        }
    }

    /// How far the log goes and who votes by it, whether Raft runs or not.
    pub fn extent(&self) -> Option<Extent> {
        let Some(handle) = self.handle() else { return self.shown_extent() };
        let status = handle.status();
        let nodes = status.voters.into_iter().chain(status.learners).collect();
        Some(Extent { position: status.position, halves: handle.membership().halves, nodes })
    }

    /// Answers another agent's question: an operator's, which it passes on.
    pub(super) async fn recover_for(&self, request: RecoverRequest) -> RecoverReply {
        let answered = async {
            let local = self.local_log().ok_or("there is no log here")?;
            let domain = local.domain.as_ref().map_or("", |domain| domain.as_str());
            // Which logs are retired here does not rest on the one that does not.
            let way = if request.list_retired { Way::Listing } else { Way::PassedOn };
            if way == Way::PassedOn && (request.domain != domain || request.epoch != local.epoch.0) {
                return Err(format!("this is domain '{domain}', epoch {}", local.epoch));
            }
            let questions = self.questions().lock().unwrap_or_else(PoisonError::into_inner).clone();
            let questions = questions.ok_or("this agent starts")?;
            let said = |text: String| (!text.is_empty()).then_some(text);
            let wish =
                Wish { accepted_by: said(request.accepted_by), from_retired_log: said(request.from_retired_log) };
            ask(&questions, wish, way).await
        };
        match answered.await {
            Ok(answer) => RecoverReply { answer, refusal: String::new() },
            Err(refusal) => RecoverReply { answer: String::new(), refusal },
        }
    }
}
