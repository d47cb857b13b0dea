//! How much log is kept, by the size of the volume: log that fills a volume stops its server.

use std::fmt::Write;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A part of the volume, as the value of a parameter.
struct Size {
    parameter: &'static str,
    /// One part of so many.
    divisor: u64,
    least: u64,
    most: u64,
}

/// What a slot retains lies behind the log that is written, what a checkpoint keeps for reuse before it: both together are at most
/// three eighths of a volume of 512 MiB or more. A user's own settings come after these.
const SIZES: [Size; 3] = [
    // Between two checkpoints. PostgreSQL's own value is the most.
    Size { parameter: "max_wal_size", divisor: 8, least: 64 * MIB, most: GIB },
    // Without a slot. A rewind needs what goes back to the last change of primary.
    Size { parameter: "wal_keep_size", divisor: 16, least: 64 * MIB, most: GIB },
    // For a standby that is away. One that needs more is copied, and a copy of all costs less than to replay much.
    Size { parameter: "max_slot_wal_keep_size", divisor: 4, least: 128 * MIB, most: 64 * GIB },
];

/// The lines of the configuration on a volume of so many bytes.
pub(super) fn lines(volume: u64) -> String {
    SIZES.iter().fold(String::new(), |mut lines, Size { parameter, divisor, least, most }| {
        let bytes = (volume / divisor).clamp(*least, *most);
        let _ = writeln!(lines, "{parameter} = {}MB", bytes / MIB);
        lines
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `max_wal_size wal_keep_size max_slot_wal_keep_size` on a volume.
    fn sizes(volume: u64) -> String {
        let lines = lines(volume);
        let values: Vec<&str> = lines.lines().filter_map(|line| Some(line.split_once(" = ")?.1)).collect();
        values.join(" ")
    }

    #[test]
    fn the_log_takes_a_part_of_the_volume() {
        assert_eq!(sizes(GIB), "128MB 64MB 256MB");
        assert_eq!(sizes(10 * GIB), "1024MB 640MB 2560MB");
        assert_eq!(sizes(100 * GIB), "1024MB 1024MB 25600MB");
        assert_eq!(sizes(GIB + MIB - 1), sizes(GIB), "whole MB");
    }

    #[test]
    fn a_small_volume_has_what_a_server_needs_and_a_large_one_no_more_than_helps() {
        assert_eq!(sizes(512 * MIB), "64MB 64MB 128MB");
        assert_eq!(sizes(0), sizes(512 * MIB), "a volume that does not say its size");
        assert_eq!(sizes(u64::MAX), "1024MB 1024MB 65536MB");
    }

    #[test]
    fn the_log_never_fills_a_volume() {
        for mib in (512..4096).chain([1 << 16, 1 << 24]) {
            let lines = lines(mib * MIB);
            let of = |name: &str| {
                let line = lines.lines().find(|line| line.starts_with(name)).unwrap();
                line.split(['=', 'M']).nth(1).unwrap().trim().parse::<u64>().unwrap()
            };
            let (ahead, kept, slots) = (of("max_wal_size"), of("wal_keep_size"), of("max_slot_wal_keep_size"));
            assert!(kept <= slots && slots + ahead <= mib * 3 / 8, "{mib} MiB: {lines}");
        }
    }
}
