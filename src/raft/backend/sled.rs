//! The log in sled, for those who ask for it: the cargo feature `sled`, and `--store sled`.
//!
//! It is off by default, since sled 0.34.7 syncs with `sync_file_range`, which does not flush the disk's cache: in fault
//! tests acknowledged entries were lost, or the file did not open, after a loss of power. It passes openraft's suite and
//! `kill -9`.

use super::{Backend, Error, Fault, Loaded, Op};
use std::collections::BTreeSet;
use std::path::Path;

/// What is said at each start.
pub const WARNING: &str = "the log is kept in sled, which may lose what was acknowledged when the power is lost: use \
                           redb (--store redb, with an empty volume) unless that does not matter";

/// The first byte of a key: entries, and named values. In one tree, since a batch is whole within one only.
const ENTRY: u8 = b'e';
const VALUE: u8 = b'v';

/// A sled directory.
pub struct Sled(sled::Db);

fn entry(index: u64) -> Vec<u8> {
    [&[ENTRY][..], &index.to_be_bytes()].concat()
}

fn value(name: &str) -> Vec<u8> {
    [&[VALUE][..], name.as_bytes()].concat()
}

impl Sled {
    /// Opens the directory, or creates it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let opened = sled::Config::new().path(path).open();
        opened.map(Self).map_err(|source| Error::Open { path: path.into(), source: source.into() })
    }

    fn read(&self) -> Result<Loaded, Fault> {
        let mut loaded = Loaded::default();
        for row in self.0.iter() {
            let (key, bytes) = row?;
            match key.split_first() {
                Some((&ENTRY, index)) => {
                    loaded.log.insert(u64::from_be_bytes(index.try_into()?), bytes.to_vec());
                }
                Some((&VALUE, name)) => {
                    loaded.values.insert(String::from_utf8(name.to_vec())?, bytes.to_vec());
                }
                _ => return Err(format!("a key of something else: {key:?}").into()),
            }
        }
        Ok(loaded)
    }

    fn write(&self, ops: &[Op]) -> Result<(), sled::Error> {
        let mut batch = sled::Batch::default();
        let mut put = BTreeSet::new();
        for op in ops {
            let gone = match op {
                Op::Put(index, bytes) => {
                    batch.insert(entry(*index), bytes.as_slice());
                    put.insert(entry(*index));
                    continue;
                }
                Op::Set(name, bytes) => {
                    batch.insert(value(name), bytes.as_slice());
                    continue;
                }
                Op::Clear(name) => {
                    batch.remove(value(name));
                    continue;
                }
                Op::Truncate(from) => entry(*from)..=entry(u64::MAX),
                Op::Purge(upto) => entry(0)..=entry(*upto),
            };
            // What lies there, and what this batch put there before.
            for key in self.0.range(gone.clone()).keys() {
                batch.remove(key?);
            }
            let undone: Vec<_> = put.range(gone).cloned().collect();
            for key in undone {
                put.remove(&key);
                batch.remove(key);
            }
        }
        self.0.apply_batch(batch)?;
        self.0.flush()?;
        Ok(())
    }
}

impl Backend for Sled {
    fn load(&mut self) -> Result<Loaded, Error> {
        self.read().map_err(Error::Failed)
    }

    fn commit(&mut self, ops: &[Op]) -> Result<(), Error> {
        self.write(ops).map_err(|error| Error::Failed(error.into()))
    }
}
