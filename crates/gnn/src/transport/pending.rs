//! Messages that MPI still reads or writes while the program goes on.
//!
//! The `mpi` crate lends buffers to such requests for a scope that waits for all of them. The server must not
//! wait for one rank, so each message owns its bytes here until MPI has finished with them.
#![allow(unsafe_code)]

use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use mpi::request::{Request, StaticScope};
use mpi::topology::Process;
use mpi::traits::*;

/// A piece of a message that is being sent or received, and the memory that it is in.
pub struct Pending<B> {
    /// `None` once it has completed.
    request: Option<ManuallyDrop<Request<'static, [u8]>>>,
    bytes: ManuallyDrop<B>,
}

// SAFETY: the only field that is not `Send` is MPI's pointer to the request. MPI was started with
// MPI_THREAD_SERIALIZED, so any thread may use it, and all calls are made under one lock.
unsafe impl<B: Send> Send for Pending<B> {}

impl Pending<Arc<[u8]>> {
    /// Begins to send some of the bytes.
    pub fn send(to: &Process<'_>, bytes: &Arc<[u8]>, piece: Range<usize>, tag: i32) -> Self {
        let own = ManuallyDrop::new(bytes.clone());
        let piece = &own[piece];
        // SAFETY: `own` keeps the bytes alive and in place. It is dropped only after the request has completed.
        let lent: &'static [u8] = unsafe { slice::from_raw_parts(piece.as_ptr(), piece.len()) };
        let request = to.immediate_send_with_tag(StaticScope, lent, tag);
        Self { request: Some(ManuallyDrop::new(request)), bytes: own }
    }
}

impl Pending<Vec<u8>> {
    /// Begins to receive as many bytes.
    pub fn receive(from: &Process<'_>, len: usize, tag: i32) -> Self {
        let mut own = ManuallyDrop::new(vec![0; len]);
        // SAFETY: `own` keeps the bytes alive and in place, and nobody reads or drops them until the request
        // has completed.
        let lent: &'static mut [u8] = unsafe { slice::from_raw_parts_mut(own.as_mut_ptr(), len) };
        let request = from.immediate_receive_into_with_tag(StaticScope, lent, tag);
        Self { request: Some(ManuallyDrop::new(request)), bytes: own }
    }

    /// The bytes that have come, once. Only of a request that has completed.
    pub fn take(&mut self) -> Vec<u8> {
        assert!(self.request.is_none(), "the message is still on its way");
        mem::take(&mut self.bytes)
    }
}

impl<B> Pending<B> {
    /// Whether MPI has finished with the bytes.
    pub fn is_done(&mut self) -> bool {
        let Some(request) = self.request.take() else { return true };
        match ManuallyDrop::into_inner(request).test() {
            Ok(_) => true,
            Err(request) => {
                self.request = Some(ManuallyDrop::new(request));
                false
            }
        }
    }
}

impl<B> Drop for Pending<B> {
    fn drop(&mut self) {
        // A request that nobody waits for keeps its bytes for ever: MPI may still write to them.
        if self.request.is_none() {
            // SAFETY: MPI has finished with the bytes, and this is the only place that drops them.
            unsafe { ManuallyDrop::drop(&mut self.bytes) };
        }
    }
}
