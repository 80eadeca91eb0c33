//! Bodies on their way in, whatever the protocol. Each has a time limit, and all of them together stay
//! within one budget of bytes: a thousand clients that each send most of a large request cannot fill the
//! memory, because the one that exceeds the budget is cut off.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use crate::server::Limits;

/// A client that takes longer for one request's body is cut off.
const BODY_MAX: Duration = Duration::from_secs(60);
/// The budget counts in these, because a semaphore's permits are few.
const UNIT_BYTES: usize = 1024;
/// Requests of the largest size that may be under way at once.
const LARGEST_AT_ONCE: usize = 16;
/// The one call whose body may last: requests come in it as they are made.
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The bytes that all requests under way may hold together.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Semaphore>);

/// A share of the budget, which is given back when this is dropped.
#[derive(Debug)]
pub struct Held(OwnedSemaphorePermit);

impl Budget {
    pub fn new(limits: &Limits) -> Self {
        let units = (limits.request_bytes_max / UNIT_BYTES + 1).saturating_mul(LARGEST_AT_ONCE);
        Self(Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))))
    }

    /// Takes a share for so many bytes; `None`: the budget does not have it.
    pub fn hold(&self, bytes: usize) -> Option<Held> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(units).ok().map(Held)
    }
}

/// Why a body was cut off.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    #[error("it took longer than {} s", BODY_MAX.as_secs())]
    Late,
    #[error("the server receives too much at once; try again later")]
    TooMuch,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

/// A body within its limits. Its share of the budget is given back when it is dropped.
pub struct Limited<B> {
    body: B,
    budget: Budget,
    held: Option<Held>,
    /// Set when the body first makes the server wait; most never do.
    limit: Option<Pin<Box<Sleep>>>,
    may_last: bool,
}

impl<B> Limited<B> {
    pub fn new(body: B, path: &str, budget: &Budget) -> Self {
        Self { body, budget: budget.clone(), held: None, limit: None, may_last: path == STREAM }
    }

    fn hold(&mut self, bytes: usize) -> Result<(), Cut> {
        let more = self.budget.hold(bytes).ok_or(Cut::TooMuch)?;
        // The parts of a stream are requests of their own, which end with their answers.
        match &mut self.held {
            _ if self.may_last => {}
            Some(held) => held.0.merge(more.0),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Body for Limited<B> {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        let frame = match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending if this.may_last => return Poll::Pending,
            Poll::Pending => {
                let limit =
                    this.limit.get_or_insert_with(|| Box::pin(tokio::time::sleep(BODY_MAX)));
                ready!(limit.as_mut().poll(cx));
                return Poll::Ready(Some(Err(Cut::Late)));
            }
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                Some(this.hold(bytes).map(|()| frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};
    use tonic::codegen::tokio_stream::{Stream, StreamExt as _, iter, pending};

    use super::*;

    fn parts(count: usize) -> impl Stream<Item = Result<Frame<Bytes>, hyper::Error>> + Unpin {
        iter((0..count).map(|_| Ok(Frame::data(Bytes::from(vec![0; 4 * UNIT_BYTES])))))
    }

    fn limited(
        count: usize,
        budget: &Budget,
    ) -> Limited<impl Body<Data = Bytes, Error = hyper::Error> + Unpin> {
        Limited::new(StreamBody::new(parts(count)), "/", budget)
    }

    fn budget() -> Budget {
        let limits = Limits { request_bytes_max: 7 * UNIT_BYTES, ..Limits::default() };
        Budget::new(&limits) // 128 units
    }

    #[tokio::test]
    async fn bodies_share_one_budget_and_give_it_back() {
        let budget = budget();
        let mut first = limited(24, &budget);
        while first.frame().await.transpose().expect("it fits").is_some() {}
        let second = limited(24, &budget).collect().await;
        assert!(matches!(second, Err(Cut::TooMuch)), "the first is still held");
        drop(first);
        assert!(limited(24, &budget).collect().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_cut_off() {
        let endless = || StreamBody::new(parts(1).chain(pending()));
        let cut = Limited::new(endless(), "/", &budget()).collect().await;
        assert!(matches!(cut, Err(Cut::Late)));
        let stream = Limited::new(endless(), STREAM, &budget()).collect();
        assert!(tokio::time::timeout(10 * BODY_MAX, stream).await.is_err(), "streams may last");
    }
}
