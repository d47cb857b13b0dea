//! Parses a load-balancer query or a pre-filter.
//!
//! By recursive descent, bounded in length and depth before anything is kept: a text of any size, nested however deep,
//! costs no memory and no stack. An error says at which character, what was expected there, and what was found.

use super::query::{Alternative, Field, Filter, Pattern, Piece, Query, Selector, Test, Value};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The longest text in bytes: some hundred filters.
pub const MAX_BYTES: usize = 4096;
/// How many filters may be inside each other. Whatever walks through a tree does it by recursion.
pub const MAX_DEPTH: u32 = 64;
/// So many characters of what was found are shown.
const SHOWN: usize = 32;

/// Why a text is no query, or no pre-filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("character {position}: expected {expected}, found {found}")]
pub struct SyntaxError {
    /// The character, counted from 1.
    pub position: u32,
    /// What was expected there.
    pub expected: Expected,
    /// What is there.
    pub found: Found,
}

/// What was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[allow(missing_docs, reason = "each says what it is")]
pub enum Expected {
    #[error("random or round_robin")]
    Selector,
    #[error(
        "a filter (any, colocated, start_id, server_id, node_id, pid, address, hostname, label, option, not, and, or, first)"
    )]
    Filter,
    #[error("a filter or ')'")]
    FilterOrClose,
    #[error("'('")]
    Open,
    #[error("')'")]
    Close,
    #[error("',' or ')'")]
    CommaOrClose,
    #[error("the end")]
    End,
    #[error("a name of letters, digits, '_' and '-'")]
    Name,
    #[error("'*', '${{' or a value of letters, digits, '_', '-', '.' and ':'")]
    Pattern,
    #[error("':-' or '}}'")]
    DefaultOrBrace,
    #[error("'}}'")]
    Brace,
    #[error("a value: '*' stands for a variable only where nothing else is in the alternative")]
    DefaultAlone,
    #[error("the end: at most {MAX_BYTES} bytes are allowed")]
    Shorter,
    #[error("no filter here: at most {MAX_DEPTH} may be inside each other")]
    Shallower,
    #[error("text in UTF-8")]
    Utf8,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Found {
    /// Nothing.
    #[error("the end")]
    End,
    /// A word or a character; control characters are escaped.
    #[error("'{0}'")]
    Text(String),
    /// A byte that is no part of a text.
    #[error("the byte 0x{0:02x}")]
    Byte(u8),
    /// A text of that length.
    #[error("{0} bytes")]
    Bytes(u64),
}

impl FromStr for Query {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        Self::read(text.as_bytes())
    }
}

impl FromStr for Filter {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Self, SyntaxError> {
        Self::read(text.as_bytes())
    }
}

impl Query {
    /// Parses bytes of which nothing is known.
    pub fn read(bytes: &[u8]) -> Result<Self, SyntaxError> {
        let mut parser = Parser::new(bytes)?;
        parser.skip_spaces();
        let word = parser.peek_word();
        let Ok(selector) = Selector::from_str(word) else { return Err(parser.expected(Expected::Selector)) };
        parser.advance(word.len());
        parser.open()?;
        let filter = parser.filter(1)?;
        parser.close(Expected::Close)?;
        parser.end()?;
        Ok(Self { selector, filter })
    }
}

impl Filter {
    /// Parses bytes of which nothing is known.
    pub fn read(bytes: &[u8]) -> Result<Self, SyntaxError> {
        let mut parser = Parser::new(bytes)?;
        let filter = parser.filter(1)?;
        parser.end()?;
        Ok(filter)
    }
}

/// What is left of a text, and at which character that begins.
struct Parser<'t> {
    rest: &'t str,
    position: u32,
}

/// How many characters begin in these bytes. A text has at most [`MAX_BYTES`] of them.
fn characters(bytes: &[u8]) -> u32 {
    let continues = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    u32::try_from(bytes.iter().filter(|byte| !continues(**byte)).count()).unwrap_or(u32::MAX)
}

fn of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

fn of_text(character: char) -> bool {
    of_name(character) || matches!(character, '.' | ':')
}

/// The longest beginning of such characters.
fn run(text: &str, of: fn(char) -> bool) -> &str {
    &text[..text.find(|character| !of(character)).unwrap_or(text.len())]
}

impl<'t> Parser<'t> {
    fn new(bytes: &'t [u8]) -> Result<Self, SyntaxError> {
        if bytes.len() > MAX_BYTES {
            let position = characters(&bytes[..MAX_BYTES]) + 1;
            return Err(SyntaxError { position, expected: Expected::Shorter, found: Found::Bytes(bytes.len() as u64) });
        }
        match std::str::from_utf8(bytes) {
            Ok(rest) => Ok(Self { rest, position: 1 }),
            Err(error) => {
                let good = error.valid_up_to();
                let position = characters(&bytes[..good]) + 1;
                Err(SyntaxError { position, expected: Expected::Utf8, found: Found::Byte(bytes[good]) })
            }
        }
    }

    fn advance(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.position += characters(passed.as_bytes());
        self.rest = rest;
    }

    fn skip_spaces(&mut self) {
        self.advance(self.rest.len() - self.rest.trim_start_matches([' ', '\t', '\r', '\n']).len());
    }

    fn peek_word(&self) -> &'t str {
        run(self.rest, of_name)
    }

    fn eat(&mut self, text: &str) -> bool {
        let there = self.rest.starts_with(text);
        if there {
            self.advance(text.len());
        }
        there
    }

    /// The error that something else was expected here.
    fn expected(&self, expected: Expected) -> SyntaxError {
        let word = run(self.rest, of_text);
        let shown = word.chars().take(SHOWN).collect::<String>();
        let found = match self.rest.chars().next() {
            None => Found::End,
            Some(character) if character.is_control() => Found::Text(character.escape_default().to_string()),
            Some(character) if word.is_empty() => Found::Text(character.to_string()),
            Some(_) if shown.len() < word.len() => Found::Text(shown + "…"),
            Some(_) => Found::Text(shown),
        };
        SyntaxError { position: self.position, expected, found }
    }

    fn token(&mut self, text: &str, expected: Expected) -> Result<(), SyntaxError> {
        self.skip_spaces();
        if self.eat(text) { Ok(()) } else { Err(self.expected(expected)) }
    }

    fn open(&mut self) -> Result<(), SyntaxError> {
        self.token("(", Expected::Open)
    }

    fn close(&mut self, expected: Expected) -> Result<(), SyntaxError> {
        self.token(")", expected)
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        self.skip_spaces();
        if self.rest.is_empty() { Ok(()) } else { Err(self.expected(Expected::End)) }
    }

    /// A filter that is inside `depth - 1` others.
    fn filter(&mut self, depth: u32) -> Result<Filter, SyntaxError> {
        self.skip_spaces();
        let position = self.position;
        let word = self.peek_word();
        let field = match word {
            "start_id" => Some(Field::StartId),
            "server_id" => Some(Field::ServerId),
            "node_id" => Some(Field::NodeId),
            "pid" => Some(Field::Pid),
            "address" => Some(Field::Address),
            "hostname" => Some(Field::Hostname),
            "any" | "colocated" | "label" | "option" | "not" | "and" | "or" | "first" => None,
            _ => return Err(self.expected(Expected::Filter)),
        };
        if depth > MAX_DEPTH {
            return Err(self.expected(Expected::Shallower));
        }
        self.advance(word.len());
        let test = match (word, field) {
            ("any", _) => Test::Any,
            ("colocated", _) => Test::Colocated,
            ("not", _) => {
                self.open()?;
                let filter = self.filter(depth + 1)?;
                self.close(Expected::Close)?;
                Test::Not(Box::new(filter))
            }
            ("and", _) => Test::And(self.filters(depth + 1)?),
            ("or", _) => Test::Or(self.filters(depth + 1)?),
            ("first", _) => Test::First(self.filters(depth + 1)?),
            (_, Some(field)) => {
                self.open()?;
                self.matches(field)?
            }
            (named, None) => {
                self.open()?;
                self.skip_spaces();
                let name = self.name()?;
                self.matches(if named == "label" { Field::Label(name) } else { Field::Option(name) })?
            }
        };
        Ok(Filter { position, test })
    }

    /// `(f f ...)`.
    fn filters(&mut self, depth: u32) -> Result<Vec<Filter>, SyntaxError> {
        self.open()?;
        let mut filters = vec![self.filter(depth)?];
        loop {
            self.skip_spaces();
            if self.eat(")") {
                return Ok(filters);
            }
            if self.peek_word().is_empty() {
                return Err(self.expected(Expected::FilterOrClose));
            }
            filters.push(self.filter(depth)?);
        }
    }

    fn name(&mut self) -> Result<String, SyntaxError> {
        let name = self.peek_word();
        if name.is_empty() {
            return Err(self.expected(Expected::Name));
        }
        self.advance(name.len());
        Ok(name.to_owned())
    }

    /// The pattern of a field, and the `)` after it.
    fn matches(&mut self, field: Field) -> Result<Test, SyntaxError> {
        let mut alternatives = Vec::new();
        loop {
            self.skip_spaces();
            alternatives.push(self.alternative()?);
            self.skip_spaces();
            if !self.eat(",") {
                break;
            }
        }
        self.close(Expected::CommaOrClose)?;
        Ok(Test::Matches(field, Pattern(alternatives)))
    }

    fn alternative(&mut self) -> Result<Alternative, SyntaxError> {
        if let Some(name) = self.clients_or_anything() {
            return Ok(Alternative::ClientsOrAnything(name));
        }
        if self.eat("*") {
            let value = self.value()?;
            return Ok(if value.0.is_empty() { Alternative::Anything } else { Alternative::Ends(value) });
        }
        let value = self.value()?;
        if value.0.is_empty() {
            return Err(self.expected(Expected::Pattern));
        }
        Ok(if self.eat("*") { Alternative::Begins(value) } else { Alternative::Exactly(value) })
    }

    /// The name in `${name:-*}`, if that comes next.
    fn clients_or_anything(&mut self) -> Option<String> {
        let inside = self.rest.strip_prefix("${")?;
        let name = run(inside, of_name);
        let after = inside[name.len()..].strip_prefix(":-*}")?;
        let alone = !after.starts_with(|character| of_text(character) || matches!(character, '$' | '*'));
        if name.is_empty() || !alone {
            return None;
        }
        self.advance(self.rest.len() - after.len());
        Some(name.to_owned())
    }

    /// Texts and variables up to something else.
    fn value(&mut self) -> Result<Value, SyntaxError> {
        let mut pieces = Vec::new();
        loop {
            let text = run(self.rest, of_text);
            if !text.is_empty() {
                self.advance(text.len());
                pieces.push(Piece::Text(text.to_owned()));
            } else if self.eat("${") {
                pieces.push(self.variable()?);
            } else {
                return Ok(Value(pieces));
            }
        }
    }

    /// What follows `${`.
    fn variable(&mut self) -> Result<Piece, SyntaxError> {
        let name = self.name()?;
        if self.eat("}") {
            return Ok(Piece::Variable { name, default: None });
        }
        if !self.eat(":-") {
            return Err(self.expected(Expected::DefaultOrBrace));
        }
        if self.rest.starts_with("*}") {
            return Err(self.expected(Expected::DefaultAlone));
        }
        let default = run(self.rest, of_text);
        self.advance(default.len());
        if !self.eat("}") {
            return Err(self.expected(Expected::Brace));
        }
        Ok(Piece::Variable { name, default: Some(default.to_owned()) })
    }
}
