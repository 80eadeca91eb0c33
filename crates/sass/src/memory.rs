//! What machine code can address: global memory in regions, each access inside of one; shared and
//! local memory that knows which bytes were written.

use std::cell::Cell;
use std::collections::HashMap;

use crate::Fault;

/// Global memory.
#[derive(Default)]
pub struct Memory {
    regions: Vec<Region>,
    /// Who wrote each address in the present launch.
    writers: HashMap<u64, u64>,
    /// The region of the last access: the next one is mostly there as well.
    last: Cell<usize>,
}

pub struct Region {
    pub name: String,
    pub base: u64,
    pub bytes: Vec<u8>,
    pub is_writable: bool,
}

/// Where the first region begins; below it nothing is ever valid.
const FIRST: u64 = 0x7_0000_0000;
/// Fills local memory: as a float a large number, as an offset far outside of everything.
const POISON: u8 = 0x7b;
/// Bytes between regions that belong to none, so that reading past an end is noticed.
const GAP: u64 = 4096;

impl Memory {
    /// Adds a region. It begins at a multiple of 256, as the driver's allocations do, and ends exactly
    /// where its bytes end.
    pub fn add(&mut self, name: &str, bytes: Vec<u8>, is_writable: bool) -> u64 {
        let end = self.regions.iter().map(|r| r.base + r.bytes.len() as u64).max();
        let base = end.map_or(FIRST, |end| (end + GAP).next_multiple_of(256));
        self.regions.push(Region { name: name.into(), base, bytes, is_writable });
        base
    }

    /// Adds a region of host memory under its own address.
    pub fn mirror(&mut self, name: &str, base: u64, bytes: &[u8]) {
        let region = Region { name: name.into(), base, bytes: bytes.to_vec(), is_writable: false };
        let at = self.regions.partition_point(|region| region.base < base);
        self.regions.insert(at, region);
    }

    /// Removes the region that begins at `base`.
    pub fn remove(&mut self, base: u64) -> Option<Region> {
        let at = self.regions.iter().position(|region| region.base == base)?;
        Some(self.regions.remove(at))
    }

    fn region(&self, at: u64, len: usize) -> Option<usize> {
        let holds = |region: &Region| {
            region.base <= at && at + len as u64 <= region.base + region.bytes.len() as u64
        };
        if self.regions.get(self.last.get()).is_some_and(holds) {
            return Some(self.last.get());
        }
        let next = self.regions.partition_point(|region| region.base <= at);
        let found = next.checked_sub(1).filter(|found| holds(&self.regions[*found]))?;
        self.last.set(found);
        Some(found)
    }

    /// The bytes of a range that lies in one region.
    pub fn read(&self, at: u64, len: usize) -> Result<&[u8], Fault> {
        let region = self.region(at, len).ok_or(Fault::OutOfBounds { at, len })?;
        let start = (at - self.regions[region].base) as usize;
        Ok(&self.regions[region].bytes[start..start + len])
    }

    /// Forgets who wrote what: a launch begins.
    pub fn begin_launch(&mut self) {
        self.writers.clear();
    }

    /// As [`Memory::read`], to write to; only in regions that a kernel may write. No two threads of a
    /// launch may write to one address: which of them came last would be chance.
    pub fn write(&mut self, at: u64, len: usize, thread: u64) -> Result<&mut [u8], Fault> {
        if *self.writers.entry(at).or_insert(thread) != thread {
            return Err(Fault::Race { at });
        }
        let region = self.region(at, len).ok_or(Fault::OutOfBounds { at, len })?;
        let region = &mut self.regions[region];
        if !region.is_writable {
            return Err(Fault::ReadOnly { at, region: region.name.clone() });
        }
        let start = (at - region.base) as usize;
        Ok(&mut region.bytes[start..start + len])
    }

    /// The same for the host, which may write everywhere.
    pub fn host(&mut self, at: u64, len: usize) -> Result<&mut [u8], Fault> {
        let region = self.region(at, len).ok_or(Fault::OutOfBounds { at, len })?;
        let region = &mut self.regions[region];
        let start = (at - region.base) as usize;
        Ok(&mut region.bytes[start..start + len])
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes.len() as u64).sum()
    }
}

/// Memory of a block or a thread. Reading what was never written is a fault in shared memory. In local
/// memory it gives poison: compilers spill registers that have no value yet and reload them unused.
#[derive(Clone)]
pub struct Scratchpad {
    name: &'static str,
    is_strict: bool,
    /// Addresses below this are reserved.
    first: usize,
    bytes: Vec<u8>,
    is_written: Vec<bool>,
}

impl Scratchpad {
    /// A block's memory; addresses below `first` are reserved.
    pub fn shared(first: usize, len: usize) -> Self {
        let len = first + len;
        let (bytes, is_written) = (vec![0; len], vec![false; len]);
        Self { name: "shared", is_strict: true, first, bytes, is_written }
    }

    /// A thread's memory.
    pub fn local(len: usize) -> Self {
        let (bytes, is_written) = (vec![POISON; len], vec![false; len]);
        Self { name: "local", is_strict: false, first: 0, bytes, is_written }
    }

    fn range(&self, at: i64, len: usize) -> Result<std::ops::Range<usize>, Fault> {
        let outside = || Fault::OutsideScratchpad { name: self.name, at, len };
        let start = usize::try_from(at).map_err(|_| outside())?;
        if start < self.first || start + len > self.bytes.len() {
            return Err(outside());
        }
        if start % len != 0 {
            return Err(Fault::Misaligned { at: start as u64, len });
        }
        Ok(start..start + len)
    }

    pub fn read(&self, at: i64, len: usize) -> Result<&[u8], Fault> {
        let range = self.range(at, len)?;
        if self.is_strict && self.is_written[range.clone()].contains(&false) {
            return Err(Fault::Unwritten { name: self.name, at });
        }
        Ok(&self.bytes[range])
    }

    pub fn write(&mut self, at: i64, bytes: &[u8]) -> Result<(), Fault> {
        let range = self.range(at, bytes.len())?;
        self.is_written[range.clone()].fill(true);
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }
}
