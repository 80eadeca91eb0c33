//! One set of threads for all models of a process.
//!
//! Each thread owns a scratch of type `S`, which lives as long as the thread: work that needs memory
//! finds it there and allocates none. A job runs on one thread alone ([`Threads::spawn`]), or its
//! parts are shared by the thread that has it and by those that are idle ([`Threads::split`]). A job
//! that waits goes before parts of another: while all threads are busy, each request stays on one core.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Threads, each with a scratch of its own. Dropping them waits for the jobs that were started.
pub struct Threads<S: 'static> {
    shared: Arc<Shared<S>>,
    handles: Vec<JoinHandle<()>>,
}

/// Whether each thread keeps to one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// The system moves threads as it likes: right beside other programs.
    Free,
    /// Thread `i` stays on the `i`-th core that this process may use, so that caches stay warm. More
    /// threads than cores are not pinned.
    Pinned,
}

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

struct Shared<S: 'static> {
    state: Mutex<State<S>>,
    /// There is something to do, or the end has come.
    work: Condvar,
    /// A helper has left a split.
    left: Condvar,
}

struct State<S: 'static> {
    jobs: VecDeque<Job<S>>,
    splits: Vec<SplitRef<S>>,
    idle: usize,
    is_closing: bool,
}

/// Work in numbered parts, on the stack of the thread that waits for them.
struct Split<'a, S> {
    work: &'a (dyn Fn(usize, &mut S) + Sync),
    parts: usize,
    next: AtomicUsize,
    /// Threads that may still join. Changed only while the state is locked, as are the next two.
    seats: AtomicUsize,
    helpers: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The address of a split in [`State::splits`], where it stands while its owner waits in `split`.
struct SplitRef<S: 'static>(*const Split<'static, S>);

impl<S: 'static> Clone for SplitRef<S> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

// SAFETY: the split behind the address is shared by reference alone, and all that it holds is Sync.
unsafe impl<S: 'static> Send for SplitRef<S> {}

impl<S> Split<'_, S> {
    fn has_parts(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.parts
    }

    fn run(&self, scratch: &mut S) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                return;
            }
            (self.work)(part, scratch);
        }
    }
}

impl<S: Default + 'static> Threads<S> {
    /// Starts `count` threads; 0 starts none, and every split runs where it is called.
    pub fn new(count: usize, pinning: Pinning) -> std::io::Result<Self> {
        let state = State {
            jobs: VecDeque::new(),
            splits: Vec::with_capacity(16),
            idle: 0,
            is_closing: false,
        };
        let (work, left) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), work, left });
        let mut threads = Self { shared, handles: Vec::with_capacity(count) };
        let cores = if pinning == Pinning::Pinned { allowed_cores() } else { Vec::new() };
        for index in 0..count {
            let core = (count <= cores.len()).then(|| cores[index]);
            let shared = Arc::clone(&threads.shared);
            let body = move || {
                yield_to_callers();
                if let Some(core) = core {
                    pin_to(core);
                }
                shared.work_until_closed();
            };
            let name = format!("hither-{index}");
            threads.handles.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        Ok(threads)
    }

    /// The number of threads that were started.
    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// Runs a job on the next free thread, with that thread's scratch. Jobs begin in the order in
    /// which they were given. The caller bounds their number.
    pub fn spawn(&self, job: impl FnOnce(&mut S) + Send + 'static) {
        self.shared.lock().jobs.push_back(Box::new(job));
        self.shared.work.notify_one();
    }

    /// Runs `work` once for each part below `parts` and returns when all are done. This thread does
    /// them with `own`; up to `helpers_max` idle threads help. Allocates nothing.
    ///
    /// # Panics
    /// If a part does, on whichever thread.
    pub fn split(
        &self,
        own: &mut S,
        parts: usize,
        helpers_max: usize,
        work: &(dyn Fn(usize, &mut S) + Sync),
    ) {
        let helpers_max = helpers_max.min(parts.saturating_sub(1)).min(self.count());
        let split = Split {
            work,
            parts,
            next: AtomicUsize::new(0),
            seats: AtomicUsize::new(helpers_max),
            helpers: AtomicUsize::new(0),
            panic: Mutex::new(None),
        };
        if helpers_max == 0 {
            return split.run(own);
        }
        let address: *const Split<'_, S> = &split;
        let offered = Offered { shared: &self.shared, split: SplitRef(address.cast()) };
        let idle = {
            let mut state = self.shared.lock();
            state.splits.push(offered.split.clone());
            state.idle
        };
        for _ in 0..idle.min(helpers_max) {
            self.shared.work.notify_one();
        }
        split.run(own);
        // Also if a part of this thread panicked: others may still be at theirs.
        drop(offered);
        let panic = split.panic.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Cuts `out` into chunks of `len` elements, the last one perhaps shorter, and runs `work` once
    /// for each, with its number, as [`Threads::split`] does.
    ///
    /// # Panics
    /// If `len` is 0, or a chunk's work panics.
    pub fn split_chunks<T: Send>(
        &self,
        own: &mut S,
        out: &mut [T],
        len: usize,
        helpers_max: usize,
        work: &(dyn Fn(usize, &mut [T], &mut S) + Sync),
    ) {
        assert!(len > 0, "chunks of no elements");
        let total = out.len();
        let out = Chunks::new(out);
        self.split(own, total.div_ceil(len), helpers_max, &|part, scratch| {
            // SAFETY: each part is run once, and no two parts have elements in common.
            let chunk = unsafe { out.chunk(part * len..(part * len + len).min(total)) };
            work(part, chunk, scratch);
        });
    }
}

/// A slice of which threads take chunks of their own.
struct Chunks<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: whoever takes chunks sees that they do not overlap, and `T` may be sent.
unsafe impl<T: Send> Sync for Chunks<T> {}

impl<T> Chunks<T> {
    fn new(out: &mut [T]) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len() }
    }

    /// # Safety
    /// The slice is borrowed for as long as the chunk, and no other chunk has an element of it.
    #[expect(clippy::mut_from_ref)]
    unsafe fn chunk(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a chunk of the slice");
        // SAFETY: inside of the slice, as was just seen; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// A split that others may join. Dropping it withdraws the offer and waits for those that did.
struct Offered<'a, S: 'static> {
    shared: &'a Shared<S>,
    split: SplitRef<S>,
}

impl<S: 'static> Drop for Offered<'_, S> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.splits.retain(|other| !std::ptr::eq(other.0, self.split.0));
        // SAFETY: the split is a local of `split`, which drops this before it returns or unwinds.
        let split = unsafe { &*self.split.0 };
        while split.helpers.load(Ordering::Relaxed) > 0 {
            state = self.shared.left.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

enum Task<S: 'static> {
    Job(Job<S>),
    Help(SplitRef<S>),
}

impl<S: 'static> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        // No code of callers runs under the lock: a poisoned one is as good as any.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn work_until_closed(&self)
    where
        S: Default,
    {
        let mut scratch = S::default();
        while let Some(task) = self.next_task() {
            let has_panicked = match task {
                Task::Job(job) => catch_unwind(AssertUnwindSafe(|| job(&mut scratch))).is_err(),
                Task::Help(split) => {
                    // SAFETY: this thread was counted as a helper under the lock, and the owner waits
                    // until it is not.
                    let work = AssertUnwindSafe(|| unsafe { &*split.0 }.run(&mut scratch));
                    let panic = catch_unwind(work).err();
                    let has_panicked = panic.is_some();
                    self.leave(&split, panic);
                    has_panicked
                }
            };
            // The panic's hook has printed it. What the work left behind is not trusted.
            if has_panicked {
                scratch = S::default();
            }
        }
    }

    /// Waits for something to do; `None` when the threads are to end.
    fn next_task(&self) -> Option<Task<S>> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(Task::Job(job));
            }
            for split in &state.splits {
                // SAFETY: a split stands in the list only while its owner waits in `split`.
                let open = unsafe { &*split.0 };
                let seats = open.seats.load(Ordering::Relaxed);
                if seats > 0 && open.has_parts() {
                    open.seats.store(seats - 1, Ordering::Relaxed);
                    open.helpers.fetch_add(1, Ordering::Relaxed);
                    return Some(Task::Help(split.clone()));
                }
            }
            if state.is_closing {
                return None;
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            state.idle -= 1;
        }
    }

    fn leave(&self, split: &SplitRef<S>, panic: Option<Box<dyn Any + Send>>) {
        let _state = self.lock();
        // SAFETY: as in `work_until_closed`; the owner sees the count fall only under the lock.
        let split = unsafe { &*split.0 };
        if panic.is_some() {
            *split.panic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = panic;
        }
        if split.helpers.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.left.notify_all();
        }
    }
}

impl<S: 'static> Drop for Threads<S> {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.work.notify_all();
        let this = std::thread::current().id();
        // The last handle may be dropped by a job: a thread cannot wait for itself.
        for handle in self.handles.drain(..).filter(|handle| handle.thread().id() != this) {
            let _ = handle.join();
        }
    }
}

/// The cores that this process may use, in the system's order; empty where it does not tell.
pub fn allowed_cores() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a set of zeros is an empty set, and the call writes no more than its size.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) {
                0 => set,
                _ => return Vec::new(),
            }
        };
        let cores = 0..libc::CPU_SETSIZE as usize;
        // SAFETY: all numbers are below the size of the set.
        cores.filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
    }
    #[cfg(not(target_os = "linux"))]
    Vec::new()
}

/// Tells the system that this thread computes: woken, it does not push aside the thread that gives it work. A
/// server's thread on the same core thus reads all requests that have come before the first batch is cut.
fn yield_to_callers() {
    #[cfg(target_os = "linux")]
    // SAFETY: the call reads one parameter and changes nothing but how this thread is scheduled. If the system
    // refuses, it is scheduled as any other.
    unsafe {
        let parameters = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters);
    }
}

/// Does work that nobody waits for, on threads of its own that yield to all others; loops of rayon within
/// it run there too.
pub fn in_background<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new()
        .thread_name(|at| format!("background-{at}"))
        .start_handler(|_| yield_to_all())
        .build();
    match pool {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}

/// Lowers this thread's priority for good: a tenth of the usual weight, so that work goes on on a busy
/// machine, but threads that serve are not kept waiting.
fn yield_to_all() {
    const NICE: i32 = 10;
    #[cfg(target_os = "linux")]
    // SAFETY: the call changes how this thread is scheduled and nothing else; on Linux a process of number 0
    // is the calling thread. If the system refuses, it is scheduled as any other.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
}

/// Keeps this thread on one core. Where the system refuses, the thread stays free.
fn pin_to(core: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the core is one that `allowed_cores` found in such a set; the call only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
    let _ = core;
}
