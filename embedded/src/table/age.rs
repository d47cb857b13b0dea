//! Times as people read them: how long ago, in the two largest units that matter.

use crate::object::text;
use jiff::Timestamp;
use serde_json::Value;

/// How long there has been an object.
pub fn of(object: &Value, now: Timestamp) -> String {
    since(text(object, "/metadata/creationTimestamp"), now)
}

/// How long ago a time was.
pub fn since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(then) => seconds(now.as_second() - then.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// The later of two times, either of which may be empty. Times of one form sort as texts.
pub fn later<'a>(one: &'a str, other: &'a str) -> &'a str {
    one.max(other)
}

fn seconds(seconds: i64) -> String {
    let two = |large: i64, unit: char, small: i64, other: char| {
        if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit}{small}{other}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if seconds < -1 => "<invalid>".to_owned(),
        () if seconds < 120 => format!("{}s", seconds.max(0)),
        () if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, 'd', hours % 24, 'h'),
        () if days < 2 * 365 => format!("{days}d"),
        () if days < 8 * 365 => two(days / 365, 'y', days % 365, 'd'),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn ages_are_told_in_the_units_that_matter() {
        let told: Vec<String> = [-5, 0, 119, 120, 125, 601, 10_800, 10_860, 100_000, 172_800, 180_000, 7_000_000]
            .into_iter()
            .map(seconds)
            .collect();
        assert_eq!(told, ["<invalid>", "0s", "119s", "2m", "2m5s", "10m", "3h", "3h1m", "27h", "2d", "2d2h", "81d"]);
    }
}
