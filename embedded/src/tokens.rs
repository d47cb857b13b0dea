//! Tokens of ServiceAccounts: signed here, verified here, and by clients that fetch the public key.
//!
//! The key is made at start and never kept: tokens of a former run are worth nothing. Whether the ServiceAccount and
//! the pod that a token names still exist is checked against the store where a caller is admitted.

mod request;

pub use request::answer;

use crate::api::User;
use crate::object::{number, text};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use std::fmt;

/// Who signs, and for whom a token is unless something else is asked for.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The system has no randomness to make a key from.
#[derive(Debug, thiserror::Error)]
#[error("the system gives no random bytes to make a key from")]
pub struct NoRandomness;

/// Makes and verifies tokens.
pub struct Tokens {
    signing: EncodingKey,
    verifying: DecodingKey,
    key_id: String,
    /// The public point, in base64url.
    point: (String, String),
    random: SystemRandom,
}

/// Whom a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The ServiceAccount's namespace.
    pub namespace: String,
    /// Its name.
    pub service_account: String,
    /// Its UID.
    pub service_account_uid: String,
    /// The pod that the token dies with: name and UID.
    pub pod: Option<(String, String)>,
    /// The pod's node.
    pub node: Option<String>,
}

/// A ServiceAccount as a user.
pub fn service_account(namespace: &str, name: &str) -> User {
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"];
    User { name: format!("system:serviceaccount:{namespace}:{name}"), groups: groups.map(str::to_owned).to_vec() }
}

impl Tokens {
    /// Makes a key.
    pub fn new() -> Result<Self, NoRandomness> {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(|_| NoRandomness)?;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).map_err(|_| NoRandomness)?;
        // An uncompressed point: one byte that says so, then x and y.
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let point = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        Ok(Self {
            signing: EncodingKey::from_ec_der(document.as_ref()),
            verifying: DecodingKey::from_ec_components(&point.0, &point.1).expect("base64 of our own"),
            key_id: URL_SAFE_NO_PAD.encode(digest(&SHA256, pair.public_key().as_ref())),
            point,
            random,
        })
    }

    /// A word that cannot be guessed.
    ///
    /// # Panics
    /// If the system has no randomness left: it had some when the key was made.
    pub fn secret(&self) -> String {
        let mut bytes = [0; 24];
        self.random.fill(&mut bytes).expect("the system gave random bytes before");
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Makes a token that is valid for some seconds; without audiences it is for this Kubernetes.
    pub fn issue(&self, bound: &Bound, audiences: &[String], seconds: i64, now: Timestamp) -> String {
        let now = now.as_second();
        let account = json!({"name": bound.service_account, "uid": bound.service_account_uid});
        let mut bindings = json!({"namespace": bound.namespace, "serviceaccount": account});
        if let Some((name, uid)) = &bound.pod {
            bindings["pod"] = json!({"name": name, "uid": uid});
        }
        if let Some(node) = &bound.node {
            bindings["node"] = json!({"name": node});
        }
        let this = [ISSUER.to_owned()];
        let claims = json!({
            "aud": if audiences.is_empty() { &this } else { audiences }, "exp": now.saturating_add(seconds), "iat": now,
            "iss": ISSUER, "jti": self.secret(), "kubernetes.io": bindings, "nbf": now,
            "sub": service_account(&bound.namespace, &bound.service_account).name,
        });
        let header = Header { typ: None, kid: Some(self.key_id.clone()), ..Header::new(Algorithm::ES256) };
        jsonwebtoken::encode(&header, &claims, &self.signing).expect("claims of texts and numbers can be signed")
    }

    /// What a token says of Kubernetes, if it was made here, for this Kubernetes, and is valid now.
    pub fn bindings(&self, token: &str, now: Timestamp) -> Option<Value> {
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_audience(&[ISSUER]);
        validation.set_issuer(&[ISSUER]);
        // The library would take the system's clock; the time is compared below, with the one that is given.
        validation.validate_exp = false;
        let mut claims = jsonwebtoken::decode::<Value>(token, &self.verifying, &validation).ok()?.claims;
        let valid = number(&claims, "/nbf")?..number(&claims, "/exp")?;
        valid.contains(&now.as_second()).then(|| claims["kubernetes.io"].take())
    }

    /// Who shows a token, if it is good.
    pub fn verify(&self, token: &str, now: Timestamp) -> Option<User> {
        self.bindings(token, now)
            .map(|bound| service_account(text(&bound, "/namespace"), text(&bound, "/serviceaccount/name")))
    }

    /// The public key, as it is published.
    pub fn jwks(&self) -> Value {
        let (x, y) = &self.point;
        let key =
            json!({"use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256", "x": x, "y": y});
        json!({"keys": [key]})
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.key_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn bound() -> Bound {
        Bound {
            namespace: "shop".to_owned(),
            service_account: "till".to_owned(),
            service_account_uid: "sa-uid".to_owned(),
            pod: Some(("till-0".to_owned(), "pod-uid".to_owned())),
            node: Some("embedded".to_owned()),
        }
    }

    #[test]
    fn a_token_is_good_for_its_time_and_for_whom_it_was_made() {
        let tokens = Tokens::new().unwrap();
        let token = tokens.issue(&bound(), &[], 600, at(1000));
        assert_eq!(tokens.verify(&token, at(999)), None, "before");
        assert_eq!(tokens.verify(&token, at(1000)), Some(service_account("shop", "till")));
        assert_eq!(tokens.verify(&token, at(1599)), Some(service_account("shop", "till")));
        assert_eq!(tokens.verify(&token, at(1600)), None, "after");

        let other = tokens.issue(&bound(), &["kaa".to_owned()], 600, at(1000));
        assert_eq!(tokens.verify(&other, at(1000)), None, "another audience");
        let stranger = Tokens::new().unwrap();
        assert_eq!(stranger.verify(&token, at(1000)), None, "another key");
        assert_eq!(tokens.verify("a.b.c", at(1000)), None);
    }

    #[test]
    fn the_published_key_verifies_what_a_real_token_says() {
        let tokens = Tokens::new().unwrap();
        let token = tokens.issue(&bound(), &["kaa".to_owned()], 600, at(1000));
        let jwks: jsonwebtoken::jwk::JwkSet = serde_json::from_value(tokens.jwks()).unwrap();
        let header = jsonwebtoken::decode_header(&token).unwrap();
        let key = jwks.find(&header.kid.unwrap()).unwrap();
        let mut validation = Validation::new(Algorithm::ES256);
        validation.validate_exp = false;
        validation.set_audience(&["kaa"]);
        let key = DecodingKey::from_jwk(key).unwrap();
        let mut claims = jsonwebtoken::decode::<Value>(&token, &key, &validation).unwrap().claims;
        assert!(claims.as_object_mut().unwrap().remove("jti").is_some_and(|id| id.is_string()));
        let expected = json!({
            "aud": ["kaa"], "exp": 1600, "iat": 1000, "iss": ISSUER, "nbf": 1000,
            "kubernetes.io": {
                "namespace": "shop",
                "node": {"name": "embedded"},
                "pod": {"name": "till-0", "uid": "pod-uid"},
                "serviceaccount": {"name": "till", "uid": "sa-uid"},
            },
            "sub": "system:serviceaccount:shop:till",
        });
        assert_eq!(claims, expected);
    }
}
