//! What a server keeps on its volume, so that it is true after a restart too.

use crate::domain::ids::Generation;

/// What a server remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The highest generation in which it was to be the primary: 0 if in none. Written before it is promoted.
    pub taken_up: Generation,
    /// Set while its data is being replaced: it is then incomplete.
    pub overwriting: bool,
}

/// Why a server does not become the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It was promoted in this generation or in a later one. What it wrote then may not be what it would write now.
    #[error("it was to be the primary of generation {0} before, and is not promoted again in that one or an earlier one")]
    TakenUp(Generation),
    /// Its data is incomplete.
    #[error("its data is being overwritten")]
    Overwriting,
}

impl Memory {
    /// Takes up a generation. The caller writes the memory to disk before it promotes the server.
    ///
    /// Every start is a start as a standby that follows no server. So a primary that crashed needs a grant as any other
    /// server does, and with it another generation.
    pub fn take_up(&mut self, generation: Generation) -> Result<(), NotTaken> {
        if generation <= self.taken_up {
            return Err(NotTaken::TakenUp(self.taken_up));
        }
        if self.overwriting {
            return Err(NotTaken::Overwriting);
        }
        self.taken_up = generation;
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
        assert_eq!(memory.take_up(Generation(3)), Err(NotTaken::TakenUp(Generation(3))));
        assert_eq!(memory.take_up(Generation(2)), Err(NotTaken::TakenUp(Generation(3))));
        assert_eq!(memory.take_up(Generation(4)), Ok(()));
    }

    #[test]
    fn incomplete_data_is_not_promoted() {
        let mut memory = Memory { overwriting: true, ..Memory::default() };
        assert_eq!(memory.take_up(Generation(1)), Err(NotTaken::Overwriting));
        assert_eq!(memory.taken_up, Generation(0));
    }
}
