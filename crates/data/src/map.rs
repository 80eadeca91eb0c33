//! Buffers with a requested page size, and cheap handles to read-only bytes in such buffers or in
//! mapped files.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut, UncheckedAdvice};

use crate::Error;

/// Size of a huge page on x86-64, and on AArch64 with 4 KiB granules.
pub const HUGE_PAGE: usize = 2 << 20;

/// The page size to request. [`Buffer::backing`] reports what was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pages {
    /// Never huge, even where the system would grant huge pages unasked, so that comparisons are fair.
    Small,
    /// Huge where the system has them, for fewer TLB misses.
    Huge,
}

/// How memory is backed at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Bytes of address space.
    pub bytes: usize,
    /// Bytes that are resident; `None` if the system does not report it.
    pub resident_bytes: Option<usize>,
    /// Bytes in huge pages; `None` if the system does not report it.
    pub huge_bytes: Option<usize>,
}

/// Zeroed memory that begins on a page boundary, for huge pages on a huge-page boundary.
pub struct Buffer {
    map: MmapMut,
    start: usize,
    len: usize,
    reserved: usize,
}

impl Buffer {
    pub fn zeroed(bytes: usize, pages: Pages) -> Result<Self, Error> {
        let out_of_memory = |source| Error::OutOfMemory { bytes, source };
        let too_large = || out_of_memory(std::io::ErrorKind::OutOfMemory.into());
        // Whole pages of one kind, and at least one untouched page of no declared kind before and
        // behind: the system then keeps this range as an area of its own and accounts for it alone.
        let reserved = bytes.max(1).checked_next_multiple_of(HUGE_PAGE).ok_or_else(too_large)?;
        let mapped = reserved.checked_add(2 * HUGE_PAGE).ok_or_else(too_large)?;
        let map = MmapMut::map_anon(mapped).map_err(out_of_memory)?;
        let start = HUGE_PAGE - map.as_ptr().addr() % HUGE_PAGE;
        advise(&map, pages, start, reserved);
        Ok(Self { map, start, len: bytes, reserved })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }

    pub fn backing(&self) -> Backing {
        let start = self.as_slice().as_ptr().addr();
        Backing { bytes: self.len, ..backing_of(start..start + self.reserved) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is gone, and so is everybody who could read its bytes.
        release(self.map.len(), |from, len| unsafe {
            self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, len)
        });
    }
}

/// What is given back at a time.
const RELEASE_BYTES: usize = HUGE_PAGE;

/// Gives pages back piece by piece before they are unmapped: to unmap gigabytes at once would keep every thread
/// waiting that asks the system for memory meanwhile, and a thread that computes on the same core.
fn release(bytes: usize, give_back: impl Fn(usize, usize) -> std::io::Result<()>) {
    for from in (0..bytes).step_by(RELEASE_BYTES) {
        if give_back(from, RELEASE_BYTES.min(bytes - from)).is_err() {
            return;
        }
        std::thread::yield_now();
    }
}

/// Has no effect on a kernel without huge pages; [`Buffer::backing`] shows it.
#[cfg(target_os = "linux")]
fn advise(map: &MmapMut, pages: Pages, start: usize, len: usize) {
    let advice = match pages {
        Pages::Small => memmap2::Advice::NoHugePage,
        Pages::Huge => memmap2::Advice::HugePage,
    };
    let _ = map.advise_range(advice, start, len);
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &MmapMut, _: Pages, _: usize, _: usize) {}

/// Read-only bytes that are cheap to clone and to slice, in a mapped file or in a [`Buffer`].
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    start: usize,
    len: usize,
}

#[derive(Clone)]
enum Owner {
    Map(Arc<Mapped>),
    Buffer(Arc<Buffer>),
}

/// A mapped file, on the list of those that are named when they are cut off.
struct Mapped {
    // Before the map: an address on the list is always mapped.
    #[cfg(unix)]
    _watch: crate::torn::Watch,
    map: Mmap,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the pages are those of a file, which keeps its bytes, and nobody reads them here any more.
        release(self.map.len(), |from, len| unsafe {
            self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, len)
        });
    }
}

impl Owner {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Map(mapped) => &mapped.map,
            Self::Buffer(buffer) => buffer.as_slice(),
        }
    }
}

impl Bytes {
    /// Maps a file. Truncating a mapped file ends the process with an error that names it: replace
    /// such files by renaming, as `Output` does. A file that is written in place shows its new bytes;
    /// code that takes addresses or lengths from mapped bytes copies them first, or checks each use.
    pub fn map(path: &Path) -> Result<Self, Error> {
        let file = open(path).map_err(Error::io("open", path))?;
        let metadata = file.metadata().map_err(Error::io("open", path))?;
        if metadata.is_dir() {
            return Err(Error::Directory { path: path.into() });
        }
        if !metadata.is_file() {
            let (kind, remedy) = ("a pipe or a device", "only files on disk can be mapped");
            return Err(Error::WrongKind { path: path.into(), kind, remedy });
        }
        if metadata.len() == 0 {
            return Err(Error::Empty { path: path.into() });
        }
        Self::map_file(&file, path)
    }

    /// Maps an open file that is not empty. The path is for messages.
    pub(crate) fn map_file(file: &File, path: &Path) -> Result<Self, Error> {
        // SAFETY: the bytes are only ever read as `u8`, for which every value is valid; a page that
        // is gone ends the process (see `torn`).
        let map = unsafe { Mmap::map(file) }.map_err(Error::io("map", path))?;
        let mapped = Mapped {
            #[cfg(unix)]
            _watch: crate::torn::watch(map.as_ptr().addr(), map.len(), path),
            map,
        };
        Ok(Self { start: 0, len: mapped.map.len(), owner: Owner::Map(Arc::new(mapped)) })
    }

    /// A part of the bytes, or `None` if the range reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let fits = range.start <= range.end && range.end <= self.len;
        fits.then(|| Self {
            owner: self.owner.clone(),
            start: self.start + range.start,
            len: range.end - range.start,
        })
    }

    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Map(_))
    }

    /// Backing of the whole file or buffer that these bytes are part of; the system reports nothing
    /// smaller.
    pub fn backing(&self) -> Backing {
        match &self.owner {
            Owner::Buffer(buffer) => buffer.backing(),
            Owner::Map(mapped) => {
                let map = &mapped.map;
                let start = map.as_ptr().addr();
                Backing { bytes: map.len(), ..backing_of(start..start + map.len()) }
            }
        }
    }
}

/// Opens what may be a pipe without waiting for somebody to write to it.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.open(path)
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        Self { start: 0, len: buffer.len(), owner: Owner::Buffer(Arc::new(buffer)) }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.as_slice()[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_mapped() { "mapped" } else { "buffer" };
        write!(f, "Bytes({} bytes, {kind})", self.len)
    }
}

/// Sums what the kernel reports for each memory area inside an address range.
#[cfg(target_os = "linux")]
fn backing_of(range: Range<usize>) -> Backing {
    let Ok(text) = std::fs::read_to_string("/proc/self/smaps") else { return Backing::default() };
    let (mut resident, mut huge, mut found, mut inside) = (0, 0, false, false);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(key), Some(value)) = (words.next(), words.next()) else { continue };
        let Some(field) = key.strip_suffix(':') else {
            inside = area(key).is_some_and(|area| area.start < range.end && range.start < area.end);
            found |= inside;
            continue;
        };
        let kilobytes = || value.parse::<usize>().unwrap_or(0) * 1024;
        match field {
            "Rss" if inside => resident += kilobytes(),
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" if inside => huge += kilobytes(),
            _ => {}
        }
    }
    let told = |bytes| found.then_some(bytes);
    Backing { bytes: range.len(), resident_bytes: told(resident), huge_bytes: told(huge) }
}

/// Parses `7f12a000-7f13b000`, the first word of an area's header line.
#[cfg(target_os = "linux")]
fn area(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn backing_of(_: Range<usize>) -> Backing {
    Backing::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_huge_buffers_are_zero_aligned_and_accounted_for_alone() {
        for pages in [Pages::Small, Pages::Huge] {
            let bytes = 3 * HUGE_PAGE + 5;
            let mut one = Buffer::zeroed(bytes, pages).expect("memory");
            let mut other = Buffer::zeroed(bytes, pages).expect("memory");
            assert!(one.as_slice().iter().all(|byte| *byte == 0));
            assert_eq!(one.as_slice().as_ptr().addr() % HUGE_PAGE, 0);
            one.as_mut_slice().fill(1);
            other.as_mut_slice().fill(2);
            let backing = one.backing();
            assert_eq!(backing.bytes, bytes);
            let Some(resident) = backing.resident_bytes else { continue };
            assert!((bytes..=bytes.next_multiple_of(HUGE_PAGE)).contains(&resident), "{resident}");
            let huge = backing.huge_bytes.expect("told with the rest");
            assert!(huge <= resident, "{huge}");
            match pages {
                Pages::Small => assert_eq!(huge, 0),
                Pages::Huge if grants_huge() => assert!(huge > 0),
                Pages::Huge => eprintln!("skipped: this system grants no huge pages on request"),
            }
        }
    }

    /// Whether the system makes room for huge pages that are asked for.
    fn grants_huge() -> bool {
        ["enabled", "defrag"].into_iter().all(|setting| {
            let path = format!("/sys/kernel/mm/transparent_hugepage/{setting}");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            ["[always]", "[madvise]", "[defer+madvise]"].iter().any(|on| text.contains(on))
        })
    }

    #[test]
    fn too_much_is_an_error() {
        for bytes in [usize::MAX, usize::MAX - HUGE_PAGE, 1 << 50] {
            assert!(matches!(
                Buffer::zeroed(bytes, Pages::Huge),
                Err(Error::OutOfMemory { bytes: b, .. }) if b == bytes
            ));
        }
    }

    #[test]
    fn empty_buffer() {
        let mut buffer = Buffer::zeroed(0, Pages::Small).expect("memory");
        assert!(buffer.is_empty() && buffer.as_mut_slice().is_empty());
        assert!(Bytes::from(buffer).slice(0..0).expect("inside").is_empty());
    }

    #[test]
    fn slices_stay_inside() {
        let mut buffer = Buffer::zeroed(10, Pages::Small).expect("memory");
        buffer.as_mut_slice().copy_from_slice(b"0123456789");
        let bytes = Bytes::from(buffer);
        let middle = bytes.slice(2..8).expect("inside");
        assert_eq!(&*middle.slice(1..3).expect("inside"), b"34");
        assert!(middle.slice(0..7).is_none());
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = middle.slice(5..4);
        assert!(reversed.is_none());
    }
}
