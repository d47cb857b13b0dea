//! What a server keeps on its volume, so that it is true after a restart too.

use crate::domain::ids::{Generation, Permission};
use serde::{Deserialize, Serialize};

/// What a server remembers. It is not a part of the data: neither a copy nor a rewind replaces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The highest generation for which it recorded that it would be promoted, whether or not it was: 0 if for none.
    pub taken_up: Generation,
    /// The highest generation in which it followed another server: 0 if in none. A second line of defence.
    pub followed: Generation,
    /// Set while its data is being replaced: it is then incomplete.
    pub overwriting: bool,
    /// The last permission to overwrite its data of which it makes no more use: 0 if none.
    pub returned: Permission,
}

/// Why a server does not do what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// It may have been promoted in that generation. What it wrote then may not be what it would write now.
    #[error("it was to be the primary of generation {0} before; it does not return to that one or an earlier one")]
    TakenUp(Generation),
    /// It knows of a later primary.
    #[error("it has followed the primary of generation {0}")]
    Followed(Generation),
    /// Its data is incomplete.
    #[error("its data is being overwritten")]
    Overwriting,
    /// Its archive may have joined the sync set since.
    #[error("it makes no more use of permission {0} to overwrite its data, nor of an earlier one")]
    Returned(Permission),
}

impl Memory {
    /// Takes up a generation as the primary. The caller writes the memory to disk before it promotes the server.
    ///
    /// Every start is a start as a standby that follows no server. So a primary that crashed needs a grant as any other
    /// server does, and with it another generation.
    pub fn take_up(&mut self, generation: Generation) -> Result<(), Declined> {
        if generation <= self.taken_up {
            return Err(Declined::TakenUp(self.taken_up));
        }
        if generation <= self.followed {
            return Err(Declined::Followed(self.followed));
        }
        if self.overwriting {
            return Err(Declined::Overwriting);
        }
        self.taken_up = generation;
        Ok(())
    }

    /// Follows the primary of a generation, unless this server followed that of a later one, or took up this one or a later one.
    pub fn follow(&mut self, generation: Generation) -> Result<(), Declined> {
        if generation <= self.taken_up {
            return Err(Declined::TakenUp(self.taken_up));
        }
        if generation < self.followed {
            return Err(Declined::Followed(self.followed));
        }
        self.followed = generation;
        Ok(())
    }

    /// Begins to replace the data. The caller writes the memory to disk before the first byte.
    pub fn begin_overwrite(&mut self, permission: Permission) -> Result<(), Declined> {
        if permission <= self.returned {
            return Err(Declined::Returned(self.returned));
        }
        self.overwriting = true;
        Ok(())
    }

    /// The data is whole again: the server has started on it, and follows the primary with it.
    pub fn end_overwrite(&mut self) {
        self.overwriting = false;
    }

    /// Returns a permission, used or not. The caller writes the memory to disk before it tells the domain.
    pub fn return_permission(&mut self, permission: Permission) -> Result<(), Declined> {
        if self.overwriting {
            return Err(Declined::Overwriting);
        }
        self.returned = self.returned.max(permission);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_taken_up_once() {
        let mut memory = Memory::default();
        assert_eq!(memory.take_up(Generation(3)), Ok(()));
        assert_eq!(memory.taken_up, Generation(3));
        assert_eq!(memory.take_up(Generation(3)), Err(Declined::TakenUp(Generation(3))));
        assert_eq!(memory.take_up(Generation(2)), Err(Declined::TakenUp(Generation(3))));
        assert_eq!(memory.take_up(Generation(4)), Ok(()));
    }

    #[test]
    fn incomplete_data_is_not_promoted() {
        let mut memory = Memory { overwriting: true, ..Memory::default() };
        assert_eq!(memory.take_up(Generation(1)), Err(Declined::Overwriting));
        assert_eq!(memory.taken_up, Generation(0));
    }

    #[test]
    fn a_permission_that_was_returned_is_not_used() {
        let mut memory = Memory::default();
        assert_eq!(memory.begin_overwrite(Permission(4)), Ok(()));
        assert!(memory.overwriting);
        assert_eq!(memory.return_permission(Permission(4)), Err(Declined::Overwriting), "after a crash in the middle");
        memory.end_overwrite();
        assert_eq!(memory.return_permission(Permission(4)), Ok(()));
        assert_eq!(memory.begin_overwrite(Permission(4)), Err(Declined::Returned(Permission(4))));
        assert_eq!(memory.return_permission(Permission(3)), Ok(()));
        assert_eq!(memory.begin_overwrite(Permission(4)), Err(Declined::Returned(Permission(4))));
        assert_eq!(memory.begin_overwrite(Permission(5)), Ok(()));
    }

    #[test]
    fn a_server_does_not_return_to_an_earlier_generation() {
        let mut memory = Memory::default();
        assert_eq!(memory.take_up(Generation(3)), Ok(()));
        assert_eq!(memory.follow(Generation(3)), Err(Declined::TakenUp(Generation(3))), "its own");
        assert_eq!(memory.follow(Generation(5)), Ok(()));
        assert_eq!(memory.follow(Generation(5)), Ok(()), "after a restart");
        assert_eq!(memory.follow(Generation(4)), Err(Declined::Followed(Generation(5))));
        assert_eq!(memory.take_up(Generation(5)), Err(Declined::Followed(Generation(5))));
        assert_eq!(memory.take_up(Generation(6)), Ok(()));
    }
}
