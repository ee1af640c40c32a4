//! Checks an etcd snapshot while it streams past. A snapshot is a database file, whose size is a multiple of a disk
//! block, followed by the SHA-256 of it: what ends early or was changed on the way cannot pass.

use sha2::{Digest, Sha256};

/// etcd pads its database to whole disk blocks, so the size of a snapshot leaves 32 when divided by this.
const BLOCK: u64 = 512;
const DIGEST: usize = 32;

/// Why a snapshot cannot be restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot ended early, after {size} bytes; take it again")]
    EndedEarly { size: u64 },
    #[error("the snapshot of {size} bytes does not match its own digest; take it again")]
    Corrupt { size: u64 },
}

/// A whole snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Of the file, the digest at its end included.
    pub size: u64,
    /// Of the database.
    pub sha256: [u8; DIGEST],
}

/// Takes a snapshot piece by piece and keeps no more than its last 32 bytes.
#[derive(Clone, Default)]
pub struct Verifier {
    digest: Sha256,
    /// The last bytes seen: the digest, if the snapshot ends here.
    tail: Vec<u8>,
    size: u64,
}

impl Verifier {
    pub fn update(&mut self, piece: &[u8]) {
        self.size += piece.len() as u64;
        if piece.len() >= DIGEST {
            self.digest.update(&self.tail);
            let (body, tail) = piece.split_at(piece.len() - DIGEST);
            self.digest.update(body);
            self.tail.clear();
            self.tail.extend_from_slice(tail);
            return;
        }
        self.tail.extend_from_slice(piece);
        let body = self.tail.len().saturating_sub(DIGEST);
        self.digest.update(&self.tail[..body]);
        self.tail.drain(..body);
    }

    /// Judges what was seen.
    pub fn finish(self) -> Result<Snapshot, SnapshotError> {
        let size = self.size;
        // A database is never empty: etcd writes two pages of its own before anything else.
        if size % BLOCK != DIGEST as u64 || size < BLOCK {
            return Err(SnapshotError::EndedEarly { size });
        }
        let sha256: [u8; DIGEST] = self.digest.finalize().into();
        if sha256[..] != self.tail[..] {
            return Err(SnapshotError::Corrupt { size });
        }
        Ok(Snapshot { size, sha256 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn snapshot(blocks: usize) -> Vec<u8> {
        let mut file: Vec<u8> = (0..blocks * 512).map(|index| u8::try_from(index % 251).unwrap()).collect();
        let digest: [u8; 32] = Sha256::digest(&file).into();
        file.extend(digest);
        file
    }

    fn check(pieces: &[&[u8]]) -> Result<Snapshot, SnapshotError> {
        let mut verifier = Verifier::default();
        for piece in pieces {
            verifier.update(piece);
        }
        verifier.finish()
    }

    #[test]
    fn a_whole_snapshot_passes() {
        let file = snapshot(8);
        assert_eq!(check(&[&file]).unwrap().size, file.len() as u64);
    }

    #[test]
    fn one_that_ends_early_does_not() {
        let file = snapshot(8);
        for end in [0, 31, 32, 512, file.len() - 1] {
            assert_eq!(check(&[&file[..end]]), Err(SnapshotError::EndedEarly { size: end as u64 }), "{end}");
        }
        // Cut where a snapshot could end: only the digest can tell.
        let end = 7 * 512 + 32;
        assert_eq!(check(&[&file[..end]]), Err(SnapshotError::Corrupt { size: end as u64 }));
    }

    #[test]
    fn a_changed_byte_does_not_pass() {
        let mut file = snapshot(8);
        file[1000] ^= 1;
        assert_eq!(check(&[&file]), Err(SnapshotError::Corrupt { size: file.len() as u64 }));
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_answer(cuts in proptest::collection::vec(0usize..4128, 0..12)) {
            let file = snapshot(8);
            let mut cuts = cuts;
            cuts.extend([0, file.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &file[cut[0]..cut[1]]).collect();
            prop_assert_eq!(check(&pieces), check(&[&file]));
        }
    }
}
