//! Files that change while they are mapped.
//!
//! Reading a page of a mapped file that was truncated, or that its disk cannot deliver, raises
//! SIGBUS. A handler looks up which file the address belongs to, says so and ends the process with
//! exit code 2, instead of a death without a word. It does nothing that a signal handler must not
//! do: it reads a list whose nodes are never freed, writes to standard error and exits.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A mapped range and the file that it shows. Nodes whose mapping is gone are used again.
struct Node {
    /// 0 where the mapping is gone.
    start: AtomicUsize,
    len: AtomicUsize,
    path: AtomicPtr<c_char>,
    next: AtomicPtr<Node>,
}

static NODES: AtomicPtr<Node> = AtomicPtr::new(null_mut());

/// Keeps a mapped range on the list.
pub struct Watch(&'static Node);

/// Puts a mapped file on the list, and installs the handler before the first.
pub fn watch(start: usize, len: usize, path: &Path) -> Watch {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(install);
    let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default();
    let name = name.into_raw();
    let mut node = NODES.load(Ordering::Acquire);
    // SAFETY: nodes come from `Box::leak` below and are never freed.
    while let Some(free) = unsafe { node.as_ref() } {
        // The length first: a handler that sees the start sees the length too.
        if free.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            free.len.store(len, Ordering::Release);
            let before = free.path.swap(name, Ordering::AcqRel);
            // SAFETY: the name was made by `into_raw`; no mapping uses it any more. A handler that
            // reads it now would be one for an address of a mapping that is gone.
            drop(unsafe { CString::from_raw(before) });
            free.start.store(start, Ordering::Release);
            return Watch(free);
        }
        node = free.next.load(Ordering::Acquire);
    }
    let node = Box::leak(Box::new(Node {
        start: start.into(),
        len: len.into(),
        path: AtomicPtr::new(name),
        next: AtomicPtr::new(null_mut()),
    }));
    let mut first = NODES.load(Ordering::Acquire);
    loop {
        node.next.store(first, Ordering::Release);
        match NODES.compare_exchange(first, node, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Watch(node),
            Err(now) => first = now,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::Release);
    }
}

fn install() {
    // SAFETY: an all-zero `sigaction` is valid; the handler has the signature that SA_SIGINFO asks
    // for, and runs on the alternate stack where a thread has one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, null_mut());
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system gives a valid `info` for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    let mut node = NODES.load(Ordering::Acquire);
    // SAFETY: nodes are never freed.
    while let Some(at) = unsafe { node.as_ref() } {
        let start = at.start.load(Ordering::Acquire);
        if start > 1 && (start..start + at.len.load(Ordering::Acquire)).contains(&address) {
            say(b"error: ");
            let path = at.path.load(Ordering::Acquire);
            // SAFETY: a C string that lives as long as the mapping.
            say(unsafe { std::slice::from_raw_parts(path.cast(), libc::strlen(path)) });
            say(b" was cut off while it was in use, or its disk failed; ");
            say(b"replace such files by renaming, and start again\n");
            // SAFETY: ends the process at once, without running anything of it.
            unsafe { libc::_exit(2) };
        }
        node = at.next.load(Ordering::Acquire);
    }
    // Not ours: the default is to die, as it does when the instruction runs again.
    // SAFETY: resets a signal.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn say(text: &[u8]) {
    let mut rest = text;
    while !rest.is_empty() {
        // SAFETY: writes bytes of a slice.
        let written = unsafe { libc::write(2, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(count) if count > 0 => rest = &rest[count..],
            _ => return,
        }
    }
}
