//! System shared memory: tensors that a client on this host leaves in a POSIX object instead of sending
//! them.
//!
//! An object is a file below `/dev/shm`. Tensors are read into the request and scores are written by file
//! operations; nothing is mapped. A client that changes or cuts an object while it is read gets wrong
//! scores or an error, and no other request notices.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::error::Error;
use crate::receive::{ClientBudget, Held};

/// Regions that may be registered at a time.
const REGIONS_MAX: usize = 4096;
const FOLDER: &str = "/dev/shm";

/// The regions that clients have registered.
#[derive(Debug)]
pub struct Regions {
    /// Asked for at the start, and only clients of this host can reach the server.
    is_offered: bool,
    registered: Mutex<BTreeMap<String, Arc<Region>>>,
}

/// A range of an object.
#[derive(Debug)]
pub struct Region {
    pub key: String,
    pub offset: u64,
    pub byte_size: u64,
    file: File,
}

/// A range of a region, as a request names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRange {
    pub region: String,
    pub offset: u64,
    pub byte_size: u64,
}

impl Regions {
    pub fn new(is_offered: bool) -> Self {
        Self { is_offered, registered: Mutex::default() }
    }

    pub fn is_offered(&self) -> bool {
        self.is_offered
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Region>>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a range of the object `key` under a name.
    pub fn register(
        &self,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), Error> {
        if !self.is_offered {
            let problem = "shared memory is offered with --shared-memory, while the server listens on loopback";
            return Err(Error::Unimplemented(problem.into()));
        }
        let file = open(key)?;
        let len = file.metadata().map(|meta| meta.len()).unwrap_or(0);
        let is_inside = offset.checked_add(byte_size).is_some_and(|end| end <= len);
        if !is_inside || byte_size == 0 {
            return Err(Error::malformed(format!(
                "failed to register shared memory region '{name}': {byte_size} bytes from {offset} are \
                 not in '{key}', which has {len}"
            )));
        }
        let region = Region { key: key.into(), offset, byte_size, file };
        let mut registered = self.lock();
        if registered.contains_key(name) {
            let problem = format!("shared memory region '{name}' already in manager");
            return Err(Error::malformed(problem));
        }
        if registered.len() >= REGIONS_MAX {
            let problem =
                format!("{REGIONS_MAX} shared memory regions are registered; unregister some");
            return Err(Error::malformed(problem));
        }
        registered.insert(name.into(), Arc::new(region));
        Ok(())
    }

    /// Forgets a region, or all of them if the name is empty. An unknown name is no error, as in Triton.
    pub fn unregister(&self, name: &str) {
        let mut registered = self.lock();
        match name {
            "" => registered.clear(),
            name => drop(registered.remove(name)),
        }
    }

    /// The region of this name, or all of them if the name is empty.
    pub fn status(&self, name: &str) -> Result<Vec<(String, Arc<Region>)>, Error> {
        let registered = self.lock();
        match name {
            "" => {
                Ok(registered.iter().map(|(n, region)| (n.clone(), Arc::clone(region))).collect())
            }
            name => {
                let region = registered.get(name).ok_or_else(|| unknown(name))?;
                Ok(vec![(name.into(), Arc::clone(region))])
            }
        }
    }

    fn find(&self, range: &SharedRange) -> Result<(Arc<Region>, u64), Error> {
        let region = self.lock().get(&range.region).cloned();
        let region = region.ok_or_else(|| unknown(&range.region))?;
        let end = range.offset.checked_add(range.byte_size);
        if end.is_none_or(|end| end > region.byte_size) {
            return Err(Error::malformed(format!(
                "Invalid offset + byte size for shared memory region: '{}'",
                range.region
            )));
        }
        let start = region.offset + range.offset;
        Ok((region, start))
    }

    /// Reads the tensors of one request, of which at most `bytes_max` are shared. They count as if the
    /// client had sent them.
    pub fn reader(&self, bytes_max: usize, client: ClientBudget) -> Reader<'_> {
        Reader { regions: self, limit: bytes_max, left: bytes_max, client }
    }

    /// Writes the bytes of an output to the beginning of a range.
    pub fn write(&self, range: &SharedRange, output: &str, bytes: &[u8]) -> Result<(), Error> {
        let (region, start) = self.find(range)?;
        if range.byte_size < bytes.len() as u64 {
            return Err(Error::malformed(format!(
                "shared memory size specified with the request for output '{output}' ({} bytes) should be \
                 at least {} bytes to hold the results",
                range.byte_size,
                bytes.len()
            )));
        }
        // An object that was cut is not made longer: the client would not see the scores.
        let len = region.file.metadata().map_or(0, |meta| meta.len());
        if start + bytes.len() as u64 > len {
            return Err(cut(&range.region));
        }
        region.file.write_all_at(bytes, start).map_err(|_| cut(&range.region))
    }
}

/// Reads tensors from shared memory, within the limit of a request.
pub struct Reader<'a> {
    regions: &'a Regions,
    limit: usize,
    left: usize,
    client: ClientBudget,
}

impl Reader<'_> {
    pub fn read(&mut self, range: &SharedRange) -> Result<Bytes, Error> {
        let (region, start) = self.regions.find(range)?;
        let bytes = usize::try_from(range.byte_size).ok().filter(|bytes| *bytes <= self.left);
        let bytes = bytes.ok_or(Error::TooLarge { limit: self.limit })?;
        self.left -= bytes;
        let held = self.client.hold(bytes)?;
        let mut read = vec![0; bytes];
        region.file.read_exact_at(&mut read, start).map_err(|_| cut(&range.region))?;
        Ok(Bytes::from_owner(Tensor { bytes: read, _held: held }))
    }
}

/// A tensor that was read, and its share of the budget.
struct Tensor {
    bytes: Vec<u8>,
    _held: Held,
}

impl AsRef<[u8]> for Tensor {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Opens an object by the name that `shm_open` takes.
fn open(key: &str) -> Result<File, Error> {
    let refuse = || Error::malformed(format!("Unable to open shared memory region: '{key}'"));
    let name = key.strip_prefix('/').unwrap_or(key);
    let is_name = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
    if !is_name {
        return Err(refuse());
    }
    let path = Path::new(FOLDER).join(name);
    // A link could lead out of the folder, and could take the file's place between look and open.
    let listed = path.symlink_metadata().ok().filter(|meta| meta.is_file()).ok_or_else(refuse)?;
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|_| refuse())?;
    let opened = file.metadata().map_err(|_| refuse())?;
    let is_same = (opened.dev(), opened.ino()) == (listed.dev(), listed.ino());
    // The server may be able to open objects of other users, which its clients may not.
    let is_own = opened.uid() == rustix::process::geteuid().as_raw();
    if is_same && is_own { Ok(file) } else { Err(refuse()) }
}

fn unknown(name: &str) -> Error {
    Error::UnknownRegion { name: name.into() }
}

fn cut(name: &str) -> Error {
    Error::malformed(format!(
        "shared memory region '{name}' has become shorter than it was registered"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receive::Budget;
    use crate::server::Limits;

    /// An object that is removed when the test ends.
    struct Object(String);

    impl Object {
        fn new(name: &str, bytes: &[u8]) -> Self {
            let name = format!("hither-{}-{name}", std::process::id());
            std::fs::write(Path::new(FOLDER).join(&name), bytes).expect("write to shared memory");
            Self(name)
        }

        fn path(&self) -> std::path::PathBuf {
            Path::new(FOLDER).join(&self.0)
        }
    }

    impl Drop for Object {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(self.path());
        }
    }

    /// That may hold 32 kibibytes.
    fn client() -> ClientBudget {
        let limits = Limits { request_bytes_max: 8 * 1024, ..Limits::default() };
        Budget::new(&limits).client()
    }

    fn offered() -> Regions {
        Regions::new(true)
    }

    fn range(region: &str, offset: u64, byte_size: u64) -> SharedRange {
        SharedRange { region: region.into(), offset, byte_size }
    }

    #[test]
    fn tensors_are_read_and_scores_written_within_their_region() {
        let object = Object::new("io", b"0123456789");
        let regions = offered();
        regions.register("r", &format!("/{}", object.0), 2, 6).expect("a good region");
        let mut reader = regions.reader(100, client());
        assert_eq!(reader.read(&range("r", 1, 3)).expect("inside"), &b"345"[..]);
        regions.write(&range("r", 4, 2), "o", b"ab").expect("inside");
        assert_eq!(std::fs::read(object.path()).expect("the object"), b"012345ab89");
        for outside in [range("r", 4, 3), range("r", 7, 0), range("r", u64::MAX, 2)] {
            assert!(reader.read(&outside).is_err(), "{outside:?}");
            assert!(regions.write(&outside, "o", b"").is_err(), "{outside:?}");
        }
        assert!(regions.write(&range("r", 0, 1), "o", b"ab").is_err(), "too small");
        let unknown = reader.read(&range("q", 0, 1)).expect_err("no such region");
        assert_eq!(unknown.to_string(), "Unable to find shared memory region: 'q'");
    }

    #[test]
    fn a_request_reads_no_more_than_its_limit() {
        let object = Object::new("limit", &[7; 64]);
        let regions = offered();
        regions.register("r", &object.0, 0, 64).expect("a good region");
        let mut reader = regions.reader(100, client());
        assert!(reader.read(&range("r", 0, 64)).is_ok());
        assert_eq!(reader.read(&range("r", 0, 37)), Err(Error::TooLarge { limit: 100 }));
        assert!(reader.read(&range("r", 0, 36)).is_ok());
    }

    #[test]
    fn tensors_that_were_read_count_until_they_are_dropped() {
        let object = Object::new("budget", &[7; 32 * 1024]);
        let regions = offered();
        regions.register("r", &object.0, 0, 32 * 1024).expect("a good region");
        let client = client();
        let read = |bytes| regions.reader(1 << 20, client.clone()).read(&range("r", 0, bytes));
        let first = read(20 * 1024).expect("within the budget");
        assert_eq!(read(20 * 1024), Err(Error::TooMuch));
        let part = first.slice(5..);
        drop(first);
        assert_eq!(read(20 * 1024), Err(Error::TooMuch), "a part of it is still there");
        drop(part);
        assert!(read(20 * 1024).is_ok());
    }

    #[test]
    fn an_object_that_was_cut_is_an_error() {
        let object = Object::new("cut", &[7; 64]);
        let regions = offered();
        regions.register("r", &object.0, 0, 64).expect("a good region");
        std::fs::write(object.path(), [7; 8]).expect("cut it");
        assert!(regions.reader(100, client()).read(&range("r", 0, 64)).is_err());
        assert!(regions.write(&range("r", 32, 8), "o", &[1; 8]).is_err());
        assert_eq!(std::fs::metadata(object.path()).expect("the object").len(), 8, "not grown");
    }

    #[test]
    fn only_plain_names_of_large_enough_objects_are_registered() {
        let object = Object::new("names", &[7; 8]);
        let regions = offered();
        for key in ["", "/", "..", "../etc/passwd", "/../etc/passwd", "nosuch\0", "no-such-object"]
        {
            assert!(regions.register("r", key, 0, 1).is_err(), "{key:?}");
        }
        let link = Path::new(FOLDER).join(format!("{}-link", object.0));
        std::os::unix::fs::symlink("/etc/hostname", &link).expect("a link");
        assert!(regions.register("r", &format!("{}-link", object.0), 0, 1).is_err(), "a link");
        std::fs::remove_file(link).expect("remove the link");
        for (offset, bytes) in [(0, 0), (0, 9), (8, 1), (u64::MAX, 1)] {
            assert!(regions.register("r", &object.0, offset, bytes).is_err(), "{offset} {bytes}");
        }
        regions.register("r", &object.0, 0, 8).expect("a good region");
        assert!(regions.register("r", &object.0, 0, 8).is_err(), "the name is taken");
        assert_eq!(regions.status("").expect("all").len(), 1);
        regions.unregister("r");
        assert!(regions.status("r").is_err());
        assert!(Regions::new(false).register("r", &object.0, 0, 8).is_err(), "not offered");
    }
}
