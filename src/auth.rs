//! Who is calling: verifies projected ServiceAccount tokens offline, against the cluster's published keys.
//!
//! The API server serves its keys at `/openid/v1/jwks`, which every service account may read by default. A token is
//! accepted if one of these keys signed it (RS256 or ES256), if it is valid now, and if it was made for our audience.
//!
//! The issuer is compared too where it is known: it is read from the agent's own token, which the same API server
//! issued. Outside a pod it is unknown, and then the keys alone vouch: they come from the API server that we trust, and
//! only it holds their private halves.
//!
//! What is *not* here: whether the caller may do what it asks, and whether its pod still exists.

pub mod credentials;
pub mod pod_token;
pub mod throttle;

use crate::kubernetes::Kubernetes;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use kaa_core::domain::ids::Uid;
use serde::Deserialize;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How far the clocks of the API server and of this machine may be apart.
const LEEWAY_SECONDS: u64 = 30;

/// How long the keys are not fetched again, whatever comes: anybody can send a token that names an unknown key.
const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// How long fetched keys are used before they are fetched again, so that a withdrawn key does not vouch forever.
const KEYS_KEPT: Duration = Duration::from_secs(600);

/// Where a pod finds its own token.
const OWN_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The signatures that are understood: what API servers sign with.
const ALGORITHMS: [Algorithm; 2] = [Algorithm::RS256, Algorithm::ES256];

/// Who a token speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The service account's namespace, which is also its pod's.
    pub namespace: String,
    /// The service account's name.
    pub service_account: String,
    /// The pod that the token was projected into: its name and UID.
    pub pod: Option<(String, Uid)>,
}

/// Why a token is not accepted. Never contains any of it.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is no token, or lacks what a service account's has.
    #[error("not a service account token")]
    Malformed,
    /// It is signed in a way that is not understood.
    #[error("the token is signed with an algorithm other than RS256 and ES256")]
    Algorithm,
    /// None of the cluster's keys signed it.
    #[error("the token is not signed by a key of this cluster")]
    UnknownKey,
    /// The cluster's keys could not be fetched.
    #[error("the cluster's keys are not known: {0}")]
    NoKeys(String),
    /// The signature does not fit.
    #[error("the token's signature is wrong")]
    Signature,
    /// It was valid once.
    #[error("the token has expired")]
    Expired,
    /// It will be valid.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// It was made for another audience.
    #[error("the token is not made for this audience")]
    Audience,
    /// Another issuer made it.
    #[error("the token was made by another issuer")]
    Issuer,
}

/// Verifies tokens. Keeps the cluster's keys.
pub struct TokenVerifier {
    kubernetes: Kubernetes,
    audience: String,
    issuer: Option<String>,
    keys: Mutex<Keys>,
}

/// The cluster's keys, as far as they were fetched.
#[derive(Default)]
struct Keys {
    keys: Vec<Jwk>,
    /// When they were fetched.
    fetched: Option<Instant>,
    /// When that was last tried.
    tried: Option<Instant>,
    /// Why the last try failed.
    trouble: Option<String>,
}

/// What is asked of a token, beyond what the library checks.
#[derive(Deserialize)]
struct Claims {
    exp: u64,
    nbf: Option<u64>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Bound,
}

#[derive(Deserialize)]
struct Bound {
    namespace: String,
    serviceaccount: Named,
    pod: Option<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    uid: String,
}

/// The keys as they are published. One that is not understood does not spoil the others.
#[derive(Deserialize)]
struct Published {
    keys: Vec<serde_json::Value>,
}

impl TokenVerifier {
    /// Accepts tokens that the cluster made for this audience.
    pub fn new(kubernetes: Kubernetes, audience: impl Into<String>) -> Self {
        let issuer = issuer_of_own_token(Path::new(OWN_TOKEN));
        Self { kubernetes, audience: audience.into(), issuer, keys: Mutex::default() }
    }

    /// The same, for a known issuer.
    #[must_use]
    pub fn with_issuer(self, issuer: impl Into<String>) -> Self {
        Self { issuer: Some(issuer.into()), ..self }
    }

    /// Says who the token speaks for, if it is genuine, valid and made for us.
    pub async fn verify(&self, token: &str) -> Result<Caller, Refused> {
        let header = jsonwebtoken::decode_header(token).map_err(|error| refusal(&error))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(Refused::Algorithm);
        }
        let key = self.key(&header.kid.ok_or(Refused::UnknownKey)?).await?;
        let mut validation = Validation::new(header.alg);
        // The library would take the system's clock; the time is compared below.
        validation.validate_exp = false;
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "aud", "iss"]);
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
        }
        let token = jsonwebtoken::decode::<Claims>(token, &key, &validation).map_err(|error| refusal(&error))?;
        in_time(&token.claims, crate::clock::now().0 / 1000)?;
        let bound = token.claims.kubernetes;
        Ok(Caller {
            namespace: bound.namespace,
            service_account: bound.serviceaccount.name,
            pod: bound.pod.map(|pod| (pod.name, Uid::new(pod.uid))),
        })
    }

    /// The key of this id. Held locked while keys are fetched, so that one fetch serves all who wait.
    async fn key(&self, id: &str) -> Result<DecodingKey, Refused> {
        let mut keys = self.keys.lock().await;
        let old = keys.fetched.is_none_or(|fetched| fetched.elapsed() > KEYS_KEPT);
        let may_fetch = keys.tried.is_none_or(|tried| tried.elapsed() > FETCH_PAUSE);
        if (old || keys.find(id).is_none()) && may_fetch {
            keys.tried = Some(Instant::now());
            keys.trouble = match self.kubernetes.raw::<Published>("/openid/v1", "jwks").await {
                Ok(published) => keys.replace(published),
                Err(error) => Some(error.to_line()),
            };
            // Keys that were fetched before still vouch.
            if let Some(why) = &keys.trouble {
                tracing::warn!("the cluster's keys were not fetched: {why}");
            }
        }
        let Some(key) = keys.find(id) else {
            return Err(keys.trouble.clone().map_or(Refused::UnknownKey, Refused::NoKeys));
        };
        DecodingKey::from_jwk(key).map_err(|error| refusal(&error))
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenVerifier(audience {:?}, issuer {:?})", self.audience, self.issuer)
    }
}

impl Keys {
    fn find(&self, id: &str) -> Option<&Jwk> {
        self.keys.iter().find(|key| key.common.key_id.as_deref() == Some(id))
    }

    /// Takes the keys for the old ones. There is no trouble with that.
    fn replace(&mut self, published: Published) -> Option<String> {
        self.keys = published.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect();
        self.fetched = Some(Instant::now());
        None
    }
}

/// Whether a token is valid at a time in seconds, give or take what clocks may differ by.
fn in_time(claims: &Claims, now: u64) -> Result<(), Refused> {
    match claims.nbf {
        _ if claims.exp.saturating_add(LEEWAY_SECONDS) < now => Err(Refused::Expired),
        Some(nbf) if nbf > now.saturating_add(LEEWAY_SECONDS) => Err(Refused::NotYetValid),
        Some(_) | None => Ok(()),
    }
}

/// The issuer of the token in this file. It is not verified: the kubelet put it there.
fn issuer_of_own_token(file: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct Issued {
        iss: String,
    }
    let token = std::fs::read_to_string(file).ok()?;
    let mut unverified = Validation::new(Algorithm::RS256);
    unverified.insecure_disable_signature_validation();
    unverified.set_required_spec_claims::<&str>(&[]);
    (unverified.validate_exp, unverified.validate_aud) = (false, false);
    let issued = jsonwebtoken::decode::<Issued>(token.trim(), &DecodingKey::from_secret(&[]), &unverified);
    issued.ok().map(|issued| issued.claims.iss)
}

fn refusal(error: &jsonwebtoken::errors::Error) -> Refused {
    match error.kind() {
        ErrorKind::InvalidSignature | ErrorKind::Crypto(_) => Refused::Signature,
        ErrorKind::ExpiredSignature => Refused::Expired,
        ErrorKind::ImmatureSignature => Refused::NotYetValid,
        ErrorKind::InvalidAudience => Refused::Audience,
        ErrorKind::InvalidIssuer => Refused::Issuer,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName | ErrorKind::MissingAlgorithm => {
            Refused::Algorithm
        }
        _ => Refused::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::{Caller, Refused, TokenVerifier, issuer_of_own_token};
    use crate::kubernetes::fake;
    use axum::Router;
    use axum::routing::get;
    use jsonwebtoken::{Algorithm, EncodingKey, Header};
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Base64 for URLs, without padding.
    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let digit = |bits: u32| char::from(DIGITS[bits as usize & 63]);
        let three = |chunk: &[u8]| {
            let bits = chunk.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
            (0..=chunk.len()).map(|i| digit(bits >> (18 - 6 * i))).collect::<String>()
        };
        bytes.chunks(3).map(three).collect()
    }

    struct Issuer {
        key: KeyPair,
        verifier: TokenVerifier,
        fetches: Arc<AtomicUsize>,
    }

    fn issuer() -> Issuer {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let point = key.der_bytes();
        let jwk = json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k1",
            "x": base64(&point[1..33]), "y": base64(&point[33..65])});
        let published = json!({"keys": [{"kty": "EC", "crv": "P-999", "kid": "k0"}, jwk]});
        let fetches = Arc::new(AtomicUsize::new(0));
        let counter = fetches.clone();
        let serve = async move || {
            counter.fetch_add(1, Ordering::Relaxed);
            axum::Json(published.clone())
        };
        let kubernetes = fake::kubernetes(Router::new().route("/openid/v1/jwks", get(serve)));
        let verifier = TokenVerifier { issuer: None, ..TokenVerifier::new(kubernetes, "kaa") };
        Issuer { key, verifier: verifier.with_issuer("https://cluster"), fetches }
    }

    /// Claims as the API server makes them, valid from `from` to `to` seconds from now.
    fn claims(from: i64, to: i64) -> Value {
        let now = i64::try_from(jsonwebtoken::get_current_timestamp()).expect("a time");
        json!({"aud": ["kaa"], "iss": "https://cluster", "iat": now + from, "nbf": now + from, "exp": now + to,
            "sub": "system:serviceaccount:ns:engine",
            "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "engine", "uid": "s1"},
                "pod": {"name": "sm-0", "uid": "p1"}}})
    }

    impl Issuer {
        fn sign(&self, claims: &Value, kid: &str) -> String {
            let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::ES256) };
            let key = EncodingKey::from_ec_der(self.key.serialized_der());
            jsonwebtoken::encode(&header, claims, &key).expect("a token")
        }
    }

    #[tokio::test]
    async fn a_genuine_token_tells_the_pod() {
        let issuer = issuer();
        let token = issuer.sign(&claims(0, 600), "k1");
        let caller = Caller {
            namespace: "ns".into(),
            service_account: "engine".into(),
            pod: Some(("sm-0".into(), "p1".into())),
        };
        assert_eq!(issuer.verifier.verify(&token).await.expect("a caller"), caller);
        assert_eq!(issuer.verifier.verify(&token).await.expect("a caller"), caller);
        assert_eq!(issuer.fetches.load(Ordering::Relaxed), 1, "the keys are kept");
    }

    #[tokio::test]
    async fn validity_has_half_a_minute_of_leeway() {
        let issuer = issuer();
        let verify = async |from, to| issuer.verifier.verify(&issuer.sign(&claims(from, to), "k1")).await;
        assert!(verify(-600, -20).await.is_ok());
        assert!(matches!(verify(-600, -40).await, Err(Refused::Expired)));
        assert!(verify(20, 600).await.is_ok());
        assert!(matches!(verify(40, 600).await, Err(Refused::NotYetValid)));
    }

    #[tokio::test]
    async fn a_token_for_others_or_by_others_is_refused() {
        let issuer = issuer();
        let with = |key: &str, value: Value| {
            let mut claims = claims(0, 600);
            claims[key] = value;
            issuer.sign(&claims, "k1")
        };
        let verify = async |token: String| issuer.verifier.verify(&token).await.expect_err("a refusal");
        assert!(matches!(verify(with("aud", json!(["vault"]))).await, Refused::Audience));
        assert!(matches!(verify(with("aud", Value::Null)).await, Refused::Audience | Refused::Malformed));
        assert!(matches!(verify(with("iss", json!("https://other"))).await, Refused::Issuer));
        assert!(matches!(verify(with("kubernetes.io", Value::Null)).await, Refused::Malformed));
    }

    #[tokio::test]
    async fn forged_tokens_are_refused() {
        let (ours, theirs) = (issuer(), issuer());
        let verify = async |token: &str| ours.verifier.verify(token).await.expect_err("a refusal");
        assert!(matches!(verify(&theirs.sign(&claims(0, 600), "k1")).await, Refused::Signature));
        let header = Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::HS256) };
        let symmetric = jsonwebtoken::encode(&header, &claims(0, 600), &EncodingKey::from_secret(b"x"));
        assert!(matches!(verify(&symmetric.expect("a token")).await, Refused::Algorithm));
        assert!(matches!(verify("nonsense").await, Refused::Malformed));
        let none = format!("{}.{}.", base64(br#"{"alg":"none","kid":"k1"}"#), base64(b"{}"));
        assert!(matches!(verify(&none).await, Refused::Malformed | Refused::Algorithm));
    }

    #[tokio::test]
    async fn an_unknown_key_leads_to_one_fetch_not_to_many() {
        let issuer = issuer();
        for _ in 0..5 {
            let refused = issuer.verifier.verify(&issuer.sign(&claims(0, 600), "k2")).await;
            assert!(matches!(refused, Err(Refused::UnknownKey)));
        }
        assert_eq!(issuer.fetches.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn without_keys_every_token_is_refused_with_the_reason() {
        let (issuer, kubernetes) = (issuer(), fake::kubernetes(Router::new()));
        let verifier = TokenVerifier::new(kubernetes, "kaa");
        for _ in 0..2 {
            let refused = verifier.verify(&issuer.sign(&claims(0, 600), "k1")).await.expect_err("a refusal");
            assert!(refused.to_string().starts_with("the cluster's keys are not known: cannot get"), "{refused}");
        }
    }

    #[tokio::test]
    async fn the_issuer_is_read_from_a_token_of_our_own() {
        let issuer = issuer();
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("token");
        std::fs::write(&file, issuer.sign(&claims(-600, -300), "k1")).expect("a file");
        assert_eq!(issuer_of_own_token(&file).as_deref(), Some("https://cluster"));
        assert_eq!(issuer_of_own_token(&directory.path().join("missing")), None);
    }
}
