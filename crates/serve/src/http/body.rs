//! Bodies: received into one aligned buffer, decompressed within the limit, compressed if asked.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder, ZlibDecoder, ZlibEncoder};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt as _;

use super::{HEADER_LENGTH, lists};
use crate::error::Error;
use crate::receive::{Cut, Held, Intake};
use crate::server::Limits;

/// A request's body.
pub(super) struct Received {
    pub bytes: Bytes,
    /// Bytes of JSON in front of binary tensors; `None` if all is JSON.
    pub header_length: Option<usize>,
    /// The bytes' share of the budget.
    pub held: Held,
}

/// Tensors begin at a multiple of this, so that ids can be read where they are.
const ALIGNMENT: usize = 8;
/// Bytes that are reserved before anything has arrived, however long the body claims to be.
const RESERVE_MAX: usize = 1 << 20;
/// Bytes that are inflated between two looks at the budget.
const INFLATED_AT_ONCE: usize = 64 << 10;
/// Bytes and time that are spent on a body that is refused for its size.
const DISCARD_BYTES_MAX: usize = 1 << 20;
const DISCARD_MAX: Duration = Duration::from_secs(1);

pub(super) async fn read(
    request: Request,
    limits: &Limits,
) -> Result<(HeaderMap, Received), Error> {
    let (head, body) = request.into_parts();
    let limit = limits.request_bytes_max;
    let length = |name: &str| -> Result<Option<usize>, Error> {
        let Some(value) = head.headers.get(name) else { return Ok(None) };
        let length = value.to_str().ok().and_then(|value| value.trim().parse().ok());
        length.map(Some).ok_or_else(|| Error::malformed(format!("{name} is not a number of bytes")))
    };
    let header_length = length(HEADER_LENGTH)?;
    let claimed = length("content-length")?.unwrap_or(0);
    if claimed > limit {
        discard(body).await;
        return Err(Error::TooLarge { limit });
    }
    let padding = header_length.map_or(0, |length| length.wrapping_neg() % ALIGNMENT);
    let mut buffer = gather(body, padding, claimed, limit).await?;
    let intake = head.extensions.get().map(Intake::take);
    let mut held = intake.ok_or_else(|| Error::Internal("a body that was not counted".into()))?;
    let encoding = head.headers.get(header::CONTENT_ENCODING);
    if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
        buffer = decompressed(&buffer[padding..], encoding, padding, limit, &mut held)?;
    }
    held.set(buffer.capacity())?;
    let bytes = Bytes::from(buffer).slice(padding..);
    if header_length.is_some_and(|length| length > bytes.len()) {
        return Err(Error::malformed(format!(
            "{HEADER_LENGTH} is larger than the request's body of {} bytes",
            bytes.len()
        )));
    }
    Ok((head.headers, Received { bytes, header_length, held }))
}

/// Takes a body that nobody wants off the line, within bounds: a client whose bytes are left there may
/// see its connection reset instead of the answer.
async fn discard(mut body: Body) {
    let rest = async {
        let mut bytes = 0;
        while let Some(Ok(frame)) = body.frame().await {
            bytes += frame.data_ref().map_or(0, bytes::Bytes::len);
            if bytes > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_MAX, rest).await;
}

/// All of a body, behind `padding` bytes that the result leaves out.
async fn gather(
    mut body: Body,
    padding: usize,
    claimed: usize,
    limit: usize,
) -> Result<Vec<u8>, Error> {
    let mut buffer = Vec::with_capacity(padding + claimed.min(RESERVE_MAX));
    buffer.resize(padding, 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(cut)?;
        let Some(data) = frame.data_ref() else { continue };
        if buffer.len() - padding + data.len() > limit {
            return Err(Error::TooLarge { limit });
        }
        make_room(&mut buffer, data.len());
        buffer.extend_from_slice(data);
    }
    Ok(buffer)
}

/// Grows a buffer by steps of a quarter: what is reserved but not filled counts too.
fn make_room(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.capacity() - buffer.len() < bytes {
        buffer.reserve_exact(bytes.max(buffer.len() / 4));
    }
}

/// Why a body could not be read.
fn cut(error: axum::Error) -> Error {
    match error.into_inner().downcast::<Cut>() {
        Ok(cut) => Error::from(*cut),
        Err(error) => Error::malformed(format!("the request's body ended early: {error}")),
    }
}

/// The inflated body; its share grows with it.
fn decompressed(
    bytes: &[u8],
    encoding: &HeaderValue,
    padding: usize,
    limit: usize,
    held: &mut Held,
) -> Result<Vec<u8>, Error> {
    let mut reader: Box<dyn std::io::Read + '_> = match encoding.as_bytes() {
        b"gzip" => Box::new(GzDecoder::new(bytes)),
        b"deflate" => Box::new(ZlibDecoder::new(bytes)),
        _ => return Err(Error::malformed("unknown Content-Encoding; expected gzip or deflate")),
    };
    let mut buffer = vec![0; padding];
    let mut part = vec![0; INFLATED_AT_ONCE];
    loop {
        let read = match reader.read(&mut part) {
            Ok(0) => return Ok(buffer),
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let problem = format!("the body cannot be decompressed: {error}");
                return Err(Error::malformed(problem));
            }
        };
        if buffer.len() - padding + read > limit {
            return Err(Error::TooLarge { limit });
        }
        let before = buffer.capacity();
        make_room(&mut buffer, read);
        held.grow(buffer.capacity() - before)?;
        buffer.extend_from_slice(&part[..read]);
    }
}

/// An answer of JSON and perhaps tensors behind it, compressed if the client asked for it.
pub(super) fn respond(head: &HeaderMap, json: Vec<u8>, tensors: Option<Bytes>) -> Response {
    let mut bytes = json;
    if let Some(tensors) = tensors {
        bytes.extend_from_slice(&tensors);
    }
    let accepts = |word| lists(head, header::ACCEPT_ENCODING, word);
    let (encoding, bytes) = if accepts("gzip") {
        ("gzip", compressed(GzEncoder::new(&bytes[..], Compression::fast())))
    } else if accepts("deflate") {
        ("deflate", compressed(ZlibEncoder::new(&bytes[..], Compression::fast())))
    } else {
        ("", bytes)
    };
    let mut response = Response::new(Body::from(bytes));
    if !encoding.is_empty() {
        let encoding = HeaderValue::from_static(encoding);
        response.headers_mut().insert(header::CONTENT_ENCODING, encoding);
    }
    response
}

fn compressed(mut encoder: impl std::io::Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    encoder.read_to_end(&mut bytes).expect("reading from memory");
    bytes
}
