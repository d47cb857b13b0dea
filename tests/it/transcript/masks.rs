//! Masks that replace values which differ from run to run, before texts are compared.

use regex::Regex;
use std::collections::BTreeMap;

/// A pattern, and the text that replaces it.
const PATTERNS: [(&str, &str); 12] = [
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uid>"),
    (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>"),
    (r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} [\d:]{8} [+-]\d{4}", "<time>"),
    (r"\b\d+\.\d+\.\d+\.\d+(:\d+)?\b", "<address>"),
    (r"\w+://[0-9a-f]{32,}|sha256:[0-9a-f]{64}", "<container>"),
    (r#""(resourceVersion|continue)":"[^"]+""#, r#""$1":"<masked>""#),
    (r"(resource ?version:?) \d+( \(\d+\))?", "$1 <number>"),
    (r"(ResourceVersion in (?:the precondition|record)) \(\d+\)", "$1 <number>"),
    (r"\b(\d+d)?(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b|\b(\d+d)?(\d+h)?\d+m\b|\b(\d+y)?\d+d(\d+h)?\b", "<age>"),
    (r#"("[a-z-]+-hash":")[a-z0-9]+""#, r#"$1<hash>""#),
    (r"  +", "  "),
    (r" +$", ""),
];

/// The letters in names that Kubernetes generates: no vowels, so that it generates no words.
const MADE_UP: &str = "[bcdfghjklmnpqrstvwxz2456789]";

/// A shorter value is not masked.
pub const SHORTEST: usize = 5;

/// Masks: patterns, and the values of this run by name.
pub struct Masks {
    patterns: Vec<(Regex, String)>,
    hash: Regex,
    values: BTreeMap<String, String>,
}

impl Masks {
    pub fn new() -> Self {
        let compiled = |(pattern, mask): &(&str, &str)| (Regex::new(pattern).unwrap(), (*mask).to_owned());
        let hash = Regex::new(&format!("-({MADE_UP}{{6,10}})(-{MADE_UP}{{5}})?\\b")).unwrap();
        Self { patterns: PATTERNS.iter().map(compiled).collect(), hash, values: BTreeMap::new() }
    }

    /// From now on the mask replaces the value. Short values and numbers are not masked, because they appear in too
    /// many other places.
    pub fn add(&mut self, value: &str, mask: &str) {
        if value.len() >= SHORTEST && !value.bytes().all(|byte| byte.is_ascii_digit()) {
            self.values.insert(value.to_owned(), mask.to_owned());
        }
    }

    /// The line with what is volatile masked.
    pub fn mask(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for (value, mask) in self.values.iter().rev() {
            line = line.replace(value, mask);
        }
        // Before the patterns: a hash of digits and one letter looks like an age.
        let hash = |found: &regex::Captures<'_>| match (found[1].contains(|c: char| c.is_ascii_digit()), found.get(2)) {
            (true, Some(_)) => "-<hash>-<pod>".to_owned(),
            (true, None) => "-<hash>".to_owned(),
            (false, _) => found[0].to_owned(),
        };
        line = self.hash.replace_all(&line, hash).into_owned();
        for (pattern, mask) in &self.patterns {
            line = pattern.replace_all(&line, mask).into_owned();
        }
        line
    }
}

#[test]
fn what_is_volatile_is_masked() {
    let mut masks = Masks::new();
    masks.add("transcript-x2x4z", "$NS");
    let cases = [
        (
            "web-6d8d58684d-2hvrt   1/1     Running   1 (3s ago)   2m10s",
            "web-<hash>-<pod>  1/1  Running  1 (<age> ago)  <age>",
        ),
        ("Scaled up replica set web-6d8d58684d from 0 to 1", "Scaled up replica set web-<hash> from 0 to 1"),
        ("replicaset.apps/web-785545578d 1 1 1 20d", "replicaset.apps/web-<hash> 1 1 1 <age>"),
        ("pods in transcript-x2x4z at 10.244.3.3 ", "pods in $NS at <address>"),
        ("too old resource version: 1 (735)", "too old resource version: <number>"),
        (r#"{"uid":"78c24d99-9030-4cd3-801c-23f776e99b07"}"#, r#"{"uid":"<uid>"}"#),
        ("web-0 and my-strngthst", "web-0 and my-strngthst"),
        ("4 pods, 30 seconds", "4 pods, 30 seconds"),
    ];
    for (line, masked) in cases {
        assert_eq!(masks.mask(line), masked);
    }
}
