//! A position in the log.

use std::fmt;
use std::str::FromStr;

/// A position in the log, in bytes from its beginning. Shown as PostgreSQL does: both halves in hexadecimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// The text is not a position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a position in the log, such as 1/2F3A48")]
pub struct NotAPosition(String);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl FromStr for Lsn {
    type Err = NotAPosition;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |text: &str| u32::from_str_radix(text, 16).ok().map(u64::from);
        let halves = text.split_once('/').and_then(|(high, low)| Some((half(high)?, half(low)?)));
        halves.map(|(high, low)| Self(high << 32 | low)).ok_or_else(|| NotAPosition(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_shown_and_read_as_postgresql_does() {
        for (position, text) in [(0, "0/0"), (0x7_3A01_48B8, "7/3A0148B8"), (u64::MAX, "FFFFFFFF/FFFFFFFF")] {
            assert_eq!(text, Lsn(position).to_string());
            assert_eq!(Ok(Lsn(position)), text.parse());
        }
        for text in ["", "7", "7/", "/1", "1/123456789", "1/G"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }
}
