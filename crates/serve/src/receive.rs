//! Bodies on their way in, whatever the protocol. Each has a time limit, and all requests together stay
//! within one budget of bytes, from their first byte until they are answered: the request that would exceed
//! it is refused. One connection may hold a part of the budget only.
//!
//! [`Limited`] counts a body's bytes as they arrive. Whoever reads a whole request takes its share from the
//! [`Intake`] and keeps it with the request.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::error::Error;
use crate::server::Limits;

/// Requests of the largest size that may be under way at once.
const LARGEST_AT_ONCE: usize = 16;
/// Of those, requests of one connection.
const LARGEST_PER_CLIENT: usize = 4;
/// The call whose body may last: requests come in it as they are made.
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
/// Paths of calls, whose bodies are messages behind a head each.
const CALLS: [&str; 2] = ["/inference.GRPCInferenceService/", "/grpc.health.v1.Health/"];
/// A message's flag and length.
const MESSAGE_HEAD_BYTES: usize = 5;
/// Bytes that one compressed byte can become.
const INFLATION_MAX: usize = 1032;

/// A number of bytes of which shares are taken.
#[derive(Debug)]
struct Pool {
    used: AtomicUsize,
    bytes_max: usize,
}

/// The bytes that all requests of the server may hold together.
#[derive(Clone, Debug)]
pub struct Budget {
    all: Arc<Pool>,
    limits: Limits,
}

/// The part of a budget that one connection may hold.
#[derive(Clone, Debug)]
pub struct ClientBudget {
    mine: Arc<Pool>,
    budget: Budget,
}

/// The bytes that a request holds. They are given back when this is dropped.
#[derive(Debug)]
pub struct Held {
    client: ClientBudget,
    bytes: usize,
}

impl Pool {
    fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), bytes_max })
    }

    fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.used.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

impl Budget {
    pub fn new(limits: &Limits) -> Self {
        let all = Pool::new(limits.request_bytes_max.saturating_mul(LARGEST_AT_ONCE));
        Self { all, limits: *limits }
    }

    /// Bytes that requests hold now.
    pub fn used_bytes(&self) -> usize {
        self.all.used.load(Relaxed)
    }

    /// The part of a new connection.
    pub fn client(&self) -> ClientBudget {
        let mine = Pool::new(self.limits.request_bytes_max.saturating_mul(LARGEST_PER_CLIENT));
        ClientBudget { mine, budget: self.clone() }
    }
}

impl ClientBudget {
    pub fn hold(&self, bytes: usize) -> Result<Held, Cut> {
        let mut held = Held { client: self.clone(), bytes: 0 };
        held.grow(bytes)?;
        Ok(held)
    }
}

impl Held {
    /// Takes more bytes, or none of them.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Cut> {
        if !self.client.mine.take(bytes) {
            return Err(Cut::TooMuch);
        }
        if !self.client.budget.all.take(bytes) {
            self.client.mine.give_back(bytes);
            return Err(Cut::TooMuch);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Holds exactly so many bytes from now on.
    pub fn set(&mut self, bytes: usize) -> Result<(), Cut> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.grow(more),
            None => {
                drop(self.split(self.bytes - bytes));
                Ok(())
            }
        }
    }

    /// Takes the whole share, and leaves none.
    pub fn take(&mut self) -> Self {
        self.split(self.bytes)
    }

    /// The client that holds it.
    pub fn client(&self) -> ClientBudget {
        self.client.clone()
    }

    /// Takes a part out of this share; no more than it has.
    fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { client: self.client.clone(), bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.client.mine.give_back(self.bytes);
        self.client.budget.all.give_back(self.bytes);
    }
}

/// Why a body was cut off.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    #[error("it took too long")]
    Late,
    #[error("the server receives too much at once; try again later")]
    TooMuch,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

impl From<Cut> for Error {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Late => Self::Late,
            Cut::TooMuch => Self::TooMuch,
            Cut::Broken(error) => {
                Self::malformed(format!("the request's body ended early: {error}"))
            }
        }
    }
}

/// What a body is made of.
#[derive(Debug)]
enum Framing {
    /// One request.
    Whole,
    /// Messages, each behind its head.
    Messages {
        head: Vec<u8>,
        /// Bytes of the present message that have not come yet.
        left: usize,
        /// What the present message will hold once it is inflated.
        held_bytes: usize,
        /// What complete messages hold that nobody has taken yet.
        complete: VecDeque<usize>,
    },
}

/// What has arrived of a body, and the share of the budget that it holds.
#[derive(Clone, Debug)]
pub struct Intake(Arc<Mutex<Arrived>>);

#[derive(Debug)]
struct Arrived {
    held: Held,
    framing: Framing,
}

impl Intake {
    fn new(path: &str, client: &ClientBudget) -> Self {
        let is_call = CALLS.iter().any(|call| path.starts_with(call));
        let framing = match is_call {
            false => Framing::Whole,
            true => Framing::Messages {
                head: Vec::new(),
                left: 0,
                held_bytes: 0,
                complete: VecDeque::new(),
            },
        };
        let held = Held { client: client.clone(), bytes: 0 };
        Self(Arc::new(Mutex::new(Arrived { held, framing })))
    }

    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The share of the request that has arrived: of the whole body, or of its first message that was not
    /// taken yet.
    pub fn take(&self) -> Held {
        let mut arrived = self.lock();
        let bytes = match &mut arrived.framing {
            Framing::Whole => arrived.held.bytes,
            Framing::Messages { complete, .. } => complete.pop_front().unwrap_or(0),
        };
        arrived.held.split(bytes)
    }
}

impl Arrived {
    /// Counts bytes that have come.
    fn add(&mut self, mut bytes: &[u8]) -> Result<(), Cut> {
        let Framing::Messages { head, left, held_bytes, complete } = &mut self.framing else {
            return self.held.grow(bytes.len());
        };
        while !bytes.is_empty() {
            if *left == 0 {
                let (start, rest) =
                    bytes.split_at(bytes.len().min(MESSAGE_HEAD_BYTES - head.len()));
                head.extend_from_slice(start);
                bytes = rest;
                let [flag, a, b, c, d] = head[..] else { continue };
                head.clear();
                *left = u32::from_be_bytes([a, b, c, d]) as usize;
                let most = self.held.client.budget.limits.request_bytes_max;
                // The library inflates a message at once, so what it may become is held before.
                let inflated = if flag == 0 { 0 } else { *left * INFLATION_MAX };
                *held_bytes = inflated.min(most);
                self.held.grow(*held_bytes)?;
            }
            let part = bytes.len().min(*left);
            self.held.grow(part)?;
            *held_bytes += part;
            *left -= part;
            bytes = &bytes[part..];
            if *left == 0 {
                complete.push_back(std::mem::take(held_bytes));
            }
        }
        Ok(())
    }

    /// Whether a request has begun to arrive and not ended.
    fn is_within(&self) -> bool {
        match &self.framing {
            Framing::Whole => true,
            Framing::Messages { head, left, .. } => *left > 0 || !head.is_empty(),
        }
    }
}

/// A body within its limits.
pub struct Limited<B> {
    body: B,
    intake: Intake,
    limits: Limits,
    /// Set when the body first makes the server wait; most never do.
    limit: Option<Pin<Box<Sleep>>>,
    may_last: bool,
}

impl<B> Limited<B> {
    pub fn new(body: B, path: &str, client: &ClientBudget) -> Self {
        let (intake, limits) = (Intake::new(path, client), client.budget.limits);
        Self { body, intake, limits, limit: None, may_last: path == STREAM }
    }

    /// Where the share of the budget is taken from, once a request has arrived.
    pub fn intake(&self) -> Intake {
        self.intake.clone()
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
            // Between two requests of a stream.
            Poll::Pending if this.may_last && !this.intake.lock().is_within() => {
                this.limit = None;
                return Poll::Pending;
            }
            Poll::Pending => {
                let begin = || Box::pin(tokio::time::sleep(this.limits.body_max));
                let limit = this.limit.get_or_insert_with(begin);
                ready!(limit.as_mut().poll(cx));
                return Poll::Ready(Some(Err(Cut::Late)));
            }
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(&[][..], |data| data);
                let added = this.intake.lock().add(bytes);
                Some(added.map(|()| frame))
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

    const CALL: &str = "/inference.GRPCInferenceService/ModelInfer";
    const KIB: usize = 1024;

    type Part = Result<Frame<Bytes>, hyper::Error>;

    fn parts(count: usize, bytes: usize) -> impl Stream<Item = Part> + Unpin {
        iter((0..count).map(move |_| Ok(Frame::data(Bytes::from(vec![0; bytes])))))
    }

    /// 128 KiB for all, 32 KiB for each client.
    fn budget() -> Budget {
        Budget::new(&Limits { request_bytes_max: 8 * KIB, ..Limits::default() })
    }

    fn limited(
        count: usize,
        bytes: usize,
        client: &ClientBudget,
    ) -> Limited<impl Body<Data = Bytes, Error = hyper::Error> + Unpin + use<>> {
        Limited::new(StreamBody::new(parts(count, bytes)), "/", client)
    }

    /// A message with its head.
    fn message(flag: u8, bytes: usize) -> Vec<u8> {
        let mut message = vec![flag];
        message.extend((bytes as u32).to_be_bytes());
        message.resize(MESSAGE_HEAD_BYTES + bytes, 7);
        message
    }

    #[tokio::test]
    async fn small_parts_count_as_their_bytes() {
        let budget = budget();
        let client = budget.client();
        let body = limited(30 * KIB, 1, &client);
        let intake = body.intake();
        assert!(body.collect().await.is_ok(), "30 KiB in parts of one byte");
        assert_eq!(budget.used_bytes(), 30 * KIB);
        drop(intake);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test]
    async fn a_share_is_held_until_the_request_is_answered() {
        let budget = budget();
        let mut answered = Vec::new();
        for _ in 0..4 {
            let body = limited(32, KIB, &budget.client());
            let intake = body.intake();
            body.collect().await.expect("it fits");
            answered.push(intake.take());
        }
        let refused = limited(1, KIB, &budget.client()).collect().await;
        assert!(matches!(refused, Err(Cut::TooMuch)), "four requests still wait");
        answered.pop();
        assert!(limited(32, KIB, &budget.client()).collect().await.is_ok());
    }

    #[tokio::test]
    async fn a_client_gets_a_part_of_the_budget_only() {
        let budget = budget();
        let client = budget.client();
        let _held = client.hold(32 * KIB).expect("its part");
        let refused = limited(1, 1, &client).collect().await;
        assert!(matches!(refused, Err(Cut::TooMuch)));
        assert!(limited(1, 1, &budget.client()).collect().await.is_ok(), "another client");
    }

    #[tokio::test]
    async fn each_message_of_a_stream_has_its_own_share() {
        let budget = budget();
        let client = budget.client();
        let all = [message(0, 100), message(0, 0), message(1, 20)].concat();
        for part in [1, 3, all.len()] {
            let frames: Vec<Part> = all
                .chunks(part)
                .map(|bytes| Ok(Frame::data(Bytes::copy_from_slice(bytes))))
                .collect();
            let body = Limited::new(StreamBody::new(iter(frames)), STREAM, &client);
            let intake = body.intake();
            body.collect().await.expect("small messages");
            let inflated = 8 * KIB + 20;
            let shares = [intake.take(), intake.take(), intake.take(), intake.take()];
            assert_eq!(shares.each_ref().map(|share| share.bytes), [100, 0, inflated, 0]);
            assert_eq!(budget.used_bytes(), 100 + inflated);
            drop(shares);
            assert_eq!(budget.used_bytes(), 0);
        }
    }

    #[tokio::test]
    async fn a_share_follows_what_is_really_held() {
        let budget = budget();
        let client = budget.client();
        let mut held = client.hold(1000).expect("it fits");
        held.set(10).expect("less");
        assert_eq!(budget.used_bytes(), 10);
        held.set(2000).expect("more");
        assert_eq!(budget.used_bytes(), 2000);
        assert!(held.set(40 * KIB).is_err());
        assert_eq!(budget.used_bytes(), 2000, "nothing is taken in part");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_cut_off() {
        let client = budget().client();
        let endless = |bytes: Vec<u8>| {
            StreamBody::new(iter([Ok(Frame::data(bytes.into()))]).chain(pending::<Part>()))
        };
        for path in ["/", CALL] {
            let cut = Limited::new(endless(message(0, 10)), path, &client).collect().await;
            assert!(matches!(cut, Err(Cut::Late)), "{path}");
        }
        let mut begun = message(0, 10);
        begun.pop();
        let cut = Limited::new(endless(begun), STREAM, &client).collect().await;
        assert!(matches!(cut, Err(Cut::Late)), "a message of a stream that does not end");
        let stream = Limited::new(endless(message(0, 10)), STREAM, &client).collect();
        let long = 10 * Limits::default().body_max;
        assert!(tokio::time::timeout(long, stream).await.is_err(), "streams may last");
    }
}
