//! Looks after the certificate files: takes up what changed, and says so when it cannot, or when they are about to end.

use crate::config::{CERTIFICATE_PERIOD, CERTIFICATE_WARNING};
use crate::metrics::Metrics;
use crate::net::Tls;
use kaa_core::domain::ids::Millis;
use std::sync::Arc;
use tracing::{info, warn};

/// Runs until the process ends.
pub async fn watch(tls: Tls, metrics: Arc<Metrics>) {
    let mut said = None;
    loop {
        // A volume that hangs must not hold up a thread that others need.
        let (reloading, metrics) = (tls.clone(), metrics.clone());
        let reloaded = tokio::task::spawn_blocking(move || look(&reloading, &metrics)).await;
        let note = reloaded.unwrap_or_else(|error| Some(error.to_string()));
        if note != said {
            match &note {
                Some(why) => warn!("certificates: {why}"),
                None => info!("certificates: valid again"),
            }
            said = note;
        }
        tokio::time::sleep(CERTIFICATE_PERIOD).await;
    }
}

/// Takes up what changed. Returns what an operator should know.
fn look(tls: &Tls, metrics: &Metrics) -> Option<String> {
    if let Ok(true) = tls.reload() {
        metrics.certificate_reloaded();
        info!("certificates: reloaded; the certificate expires at {}", at(tls.current().not_after));
    }
    let (current, note) = (tls.current(), note(tls));
    metrics.mirror_certificates(current.not_after, current.ca_not_after, tls.trouble().is_some());
    note
}

/// What an operator should know of the certificates, if anything.
pub fn note(tls: &Tls) -> Option<String> {
    let current = tls.current();
    if let Some(trouble) = tls.trouble() {
        return Some(format!(
            "the changed certificate files are not used, and the previous certificate stays in use until {}: {trouble}",
            at(current.not_after)
        ));
    }
    let now = crate::clock::now().0 / 1000;
    // Agents and wrappers take a CA of ca.crt for trusted, whatever its dates are; OpenSSL does not.
    let files = [
        ("tls.crt", current.not_after, "is no longer trusted"),
        ("ca.crt", current.ca_not_after, "clients with OpenSSL, such as curl and nuocmd, refuse this agent"),
    ];
    for (file, not_after, then) in files {
        if not_after <= now {
            return Some(format!("{file} expired at {}: {then}", at(not_after)));
        }
        if not_after <= now + CERTIFICATE_WARNING.as_secs() {
            return Some(format!("{file} expires at {}", at(not_after)));
        }
    }
    None
}

fn at(seconds: u64) -> Millis {
    Millis(seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::{look, note};
    use crate::certificates;
    use crate::metrics::Metrics;
    use crate::net::Tls;
    use std::path::Path;

    fn write(dir: &Path, days: u32) {
        let made = certificates::make(&["localhost".to_owned()], days).unwrap();
        for (name, text) in [("ca.crt", made.ca_certificate), ("tls.crt", made.certificate), ("tls.key", made.key)] {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn a_change_counts_and_a_broken_one_is_seen_in_metric_and_note() {
        let (dir, metrics) = (tempfile::tempdir().unwrap(), Metrics::new());
        write(dir.path(), 30);
        let tls = Tls::load(dir.path()).unwrap();
        assert_eq!(look(&tls, &metrics), None);
        let ends = format!("kaa_certificate_not_after_seconds{{file=\"tls.crt\"}} {}", tls.current().not_after);
        assert!(metrics.text().contains(&ends), "{}", metrics.text());
        std::fs::write(dir.path().join("tls.crt"), "half a file").unwrap();
        let said = look(&tls, &metrics).unwrap();
        assert!(said.contains("stays in use") && said.contains("tls.crt cannot be used"), "{said}");
        assert!(metrics.text().contains("kaa_certificate_rejected 1"));
        assert!(metrics.text().contains(&ends), "the old one is in use");
        write(dir.path(), 60);
        assert_eq!(look(&tls, &metrics), None);
        assert!(metrics.text().contains("kaa_certificate_rejected 0"));
        assert!(metrics.text().contains("kaa_certificate_reloads_total 1"));
        assert!(!metrics.text().contains(&ends));
    }

    #[test]
    fn an_end_that_is_near_is_said() {
        let dir = tempfile::tempdir().unwrap();
        for (days, words) in [(3, "tls.crt expires at"), (0, "tls.crt expired at")] {
            write(dir.path(), days);
            let said = note(&Tls::load(dir.path()).unwrap()).unwrap();
            assert!(said.starts_with(words), "{said}");
        }
    }
}
