//! Output files. A regular file appears whole or not at all: the bytes go to a temporary file beside it,
//! which replaces it in one step. Devices and pipes are written through, symbolic links are followed,
//! and `-` is standard output. Every file that Hither writes comes from here.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufWriter, Stdout, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::scratch::Scratch;

const BUFFER_BYTES: usize = 1 << 18;
/// Longest file name that common file systems take.
const NAME_BYTES_MAX: usize = 255;
/// Longest chain of symbolic links that is followed; the kernel's own limit.
const LINKS_MAX: usize = 40;

/// A file that is being written. Without [`Output::commit`] a regular file stays as it was.
#[must_use]
pub struct Output {
    path: PathBuf,
    sink: Sink,
}

enum Sink {
    /// A temporary file that is to become `target`.
    File {
        out: BufWriter<File>,
        temporary: Scratch,
        target: PathBuf,
    },
    /// A device or a pipe.
    Through(BufWriter<File>),
    Stdout(BufWriter<Stdout>),
}

impl Output {
    pub fn create(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let sink = if is_stdout(path) {
            Sink::Stdout(BufWriter::with_capacity(BUFFER_BYTES, io::stdout()))
        } else if is_written_through(path) {
            // Appending, as /dev/fd/N may be a file that the caller has written to before.
            let file = OpenOptions::new().append(true).open(path);
            let file = file.map_err(Error::io("write to", path))?;
            Sink::Through(BufWriter::with_capacity(BUFFER_BYTES, file))
        } else {
            let target = follow_links(path).map_err(Error::io("write", path))?;
            let (file, temporary) = create_beside(&target).map_err(Error::io("write", path))?;
            let out = BufWriter::with_capacity(BUFFER_BYTES, file);
            Sink::File { out, temporary, target }
        };
        Ok(Self { path: path.into(), sink })
    }

    /// Fails if the file system has no room for so many bytes.
    pub fn check_space(&self, bytes: u64) -> Result<(), Error> {
        let Sink::File { target, .. } = &self.sink else { return Ok(()) };
        check_space(target, bytes)
    }

    /// Brings all bytes to the disk, without putting the file in its place yet.
    pub fn sync(&mut self) -> Result<(), Error> {
        let synced = self.flush().and_then(|()| match &self.sink {
            Sink::File { out, .. } => out.get_ref().sync_all(),
            // Pipes and many devices cannot be synced.
            Sink::Through(_) | Sink::Stdout(_) => Ok(()),
        });
        synced.map_err(Error::io("write", &self.path))
    }

    /// Puts the file in its place.
    pub fn commit(mut self) -> Result<(), Error> {
        self.sync()?;
        match &self.sink {
            Sink::File { temporary, target, .. } => {
                fs::rename(temporary.path(), target).map_err(Error::io("write", &self.path))
            }
            Sink::Through(_) | Sink::Stdout(_) => Ok(()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.sink {
            Sink::File { out, .. } | Sink::Through(out) => out.write(bytes),
            Sink::Stdout(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::File { out, .. } | Sink::Through(out) => out.flush(),
            Sink::Stdout(out) => out.flush(),
        }
    }
}

/// Writes a whole file in one step.
pub fn write_file(path: impl AsRef<Path>, content: &[u8]) -> Result<(), Error> {
    let path = path.as_ref();
    let mut output = Output::create(path)?;
    output.write_all(content).map_err(Error::io("write", path))?;
    output.commit()
}

/// Fails if the file system that holds `path`, or is going to hold it, has no room for so many bytes.
pub fn check_space(path: &Path, bytes: u64) -> Result<(), Error> {
    let there = path.ancestors().find(|place| !place.as_os_str().is_empty() && place.exists());
    // A file system that does not tell its size is found to be full when it is.
    let Ok(system) = rustix::fs::statvfs(there.unwrap_or(Path::new("."))) else { return Ok(()) };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if bytes <= free {
        return Ok(());
    }
    Err(Error::Space { path: path.into(), needed: show_bytes(bytes), free: show_bytes(free) })
}

/// A number of bytes for people: `3.33 GB`.
pub fn show_bytes(bytes: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.into_iter().find(|(unit, _)| bytes as f64 >= *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / unit),
        None => format!("{bytes} B"),
    }
}

/// Whether a path stands for standard output: `-`, or the name that Linux gives it.
pub fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-" || path == Path::new("/dev/stdout")
}

/// Whether bytes go to something that must not be replaced: a device, a pipe, a socket, or an open
/// file of another program (`/dev/fd/3`).
pub fn is_written_through(path: &Path) -> bool {
    let is_special = |meta: fs::Metadata| !meta.is_file() && !meta.is_dir();
    path.starts_with("/dev")
        || path.starts_with("/proc")
        || fs::metadata(path).is_ok_and(is_special)
}

/// The file that a path means in the end. It need not exist.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&target) {
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            // It is no link.
            Err(_) => return Ok(target),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// A temporary file in the directory of `target`, because a rename is atomic only within one file
/// system. Its name is always the same, so that a file which a killed process left is used again;
/// the lock keeps two living processes apart.
fn create_beside(target: &Path) -> io::Result<(File, Scratch)> {
    let existing = fs::metadata(target).ok();
    let name = target.file_name().filter(|_| !existing.as_ref().is_some_and(fs::Metadata::is_dir));
    let name = name.ok_or(io::ErrorKind::IsADirectory)?;
    let temporary = target.with_file_name(temporary_name(name));
    loop {
        // Not truncated before it is locked: the bytes may be another process's. In a shared directory
        // somebody may have put a link to another file in its place.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&temporary)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("another process is writing it"));
            }
            // Not every file system has locks; then the last writer wins.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // The other process may have renamed its file between our two calls.
        let (locked, named) = (file.metadata()?, fs::metadata(&temporary));
        if !named.is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino())) {
            continue;
        }
        let scratch = Scratch::new(&temporary);
        file.set_len(0)?;
        if let Some(existing) = existing {
            file.set_permissions(existing.permissions())?;
        }
        return Ok((file, scratch));
    }
}

fn temporary_name(name: &OsStr) -> OsString {
    let mut hidden = OsString::from(".");
    if name.as_bytes().len() + ".".len() + ".tmp".len() <= NAME_BYTES_MAX {
        hidden.push(name);
    } else {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hidden.push(format!("{:016x}", hasher.finish()));
    }
    hidden.push(".tmp");
    hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_place_of_the_temporary_file_is_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, victim) = (dir.path().join("out.csv"), dir.path().join("victim"));
        fs::write(&victim, "kept").expect("written");
        let planted = dir.path().join(temporary_name(OsStr::new("out.csv")));
        std::os::unix::fs::symlink(&victim, planted).expect("a link");
        assert!(Output::create(&target).is_err());
        assert_eq!(fs::read_to_string(&victim).expect("it is there"), "kept");
    }
}
