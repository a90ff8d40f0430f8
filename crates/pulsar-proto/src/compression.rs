//! The codecs of message payloads. Sizes come from strangers, so the limit is checked before anything is allocated.

use std::io::Read as _;

use bytes::Bytes;

use crate::proto::CompressionType;

/// Why a payload cannot be decompressed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    #[error("payload of {uncompressed_bytes} bytes once decompressed is larger than the limit of {limit_bytes}")]
    TooLarge { uncompressed_bytes: usize, limit_bytes: usize },
    #[error("payload does not decompress to the {expected_bytes} bytes its metadata claims")]
    WrongSize { expected_bytes: usize },
    #[error("cannot decompress {codec:?}: {reason}")]
    Damaged { codec: CompressionType, reason: String },
}

/// Decompresses a payload.
///
/// `uncompressed_bytes`: what the metadata claims (`uncompressed_size`); the result has exactly this length, and never more
/// is allocated. Without compression the payload is returned as it is.
pub fn decompress(
    codec: CompressionType,
    payload: &Bytes,
    uncompressed_bytes: usize,
    limit_bytes: usize,
) -> Result<Bytes, DecompressError> {
    if codec == CompressionType::None {
        return Ok(payload.clone());
    }
    if uncompressed_bytes > limit_bytes {
        return Err(DecompressError::TooLarge { uncompressed_bytes, limit_bytes });
    }
    let damaged = |reason: String| DecompressError::Damaged { codec, reason };
    let wrong_size = DecompressError::WrongSize { expected_bytes: uncompressed_bytes };
    let mut out = vec![0; uncompressed_bytes];
    let len = match codec {
        CompressionType::None => unreachable!("returned above"),
        CompressionType::Lz4 => {
            lz4_flex::block::decompress_into(payload, &mut out).map_err(|error| damaged(error.to_string()))?
        }
        CompressionType::Zlib => {
            // Clients end the stream with a sync flush instead of the trailer: what counts is that the output is full.
            let mut zlib = flate2::Decompress::new(true);
            zlib.decompress(payload, &mut out, flate2::FlushDecompress::Sync)
                .map_err(|error| damaged(error.to_string()))?;
            zlib.total_out() as usize
        }
        CompressionType::Zstd => decompress_zstd(payload, &mut out).map_err(damaged)?,
        CompressionType::Snappy => {
            // Refuses an output that is too small.
            snap::raw::Decoder::new().decompress(payload, &mut out).map_err(|error| damaged(error.to_string()))?
        }
    };
    if len == uncompressed_bytes { Ok(out.into()) } else { Err(wrong_size) }
}

/// Compresses a payload. The caller puts the codec and the size of `payload` into the metadata.
pub fn compress(codec: CompressionType, payload: &Bytes) -> Bytes {
    match codec {
        CompressionType::None => payload.clone(),
        CompressionType::Lz4 => lz4_flex::block::compress(payload).into(),
        CompressionType::Zlib => {
            let mut zlib = flate2::read::ZlibEncoder::new(&payload[..], flate2::Compression::default());
            let mut out = Vec::new();
            zlib.read_to_end(&mut out).expect("reading from memory cannot fail");
            out.into()
        }
        CompressionType::Zstd => {
            ruzstd::encoding::compress_to_vec(&payload[..], ruzstd::encoding::CompressionLevel::Fastest).into()
        }
        CompressionType::Snappy => {
            snap::raw::Encoder::new().compress_vec(payload).expect("a payload is far below 4 GiB").into()
        }
    }
}

/// Fills `out` and returns how much of it, or `out.len() + 1` if there is more to come.
fn decompress_zstd(payload: &[u8], out: &mut [u8]) -> Result<usize, String> {
    // The decoder keeps a window's worth of output before it hands any of it out, so a window that a stranger chose is memory
    // that a stranger chose.
    let window_bytes = zstd_window_bytes(payload).ok_or("no zstd frame begins here")?;
    let limit_bytes = ZSTD_MAX_WINDOW_BYTES.max(out.len() as u64);
    if window_bytes > limit_bytes {
        return Err(format!("window of {window_bytes} bytes is larger than {limit_bytes}"));
    }
    let mut zstd = ruzstd::decoding::StreamingDecoder::new(payload).map_err(|error| error.to_string())?;
    let mut len = 0;
    while len < out.len() {
        match zstd.read(&mut out[len..]).map_err(|error| error.to_string())? {
            0 => return Ok(len),
            read => len += read,
        }
    }
    let more = zstd.read(&mut [0]).map_err(|error| error.to_string())?;
    Ok(len + more)
}

/// What every decoder of zstd should support, says RFC 8878; compressors use no more unless they are told to.
const ZSTD_MAX_WINDOW_BYTES: u64 = 8 * 1024 * 1024;

/// The window a zstd frame asks for (RFC 8878, 3.1.1.1).
///
/// | bytes | content |
/// |--|--|
/// | 4 | magic |
/// | 1 | descriptor: bits 7-6 length of the content size, bit 5 "single segment", bits 1-0 length of the dictionary id |
/// | 1 | exponent (5 bits) and mantissa (3 bits) of the window; only if not single segment |
/// | 0, 1, 2 or 4 | dictionary id |
/// | 0, 1, 2, 4 or 8 | content size; with a single segment this is the window |
fn zstd_window_bytes(frame: &[u8]) -> Option<u64> {
    let rest = frame.strip_prefix(&[0x28, 0xb5, 0x2f, 0xfd])?;
    let (descriptor, rest) = rest.split_first()?;
    if descriptor & 0x20 == 0 {
        let window = rest.first()?;
        let base = 1u64 << (10 + (window >> 3));
        return Some(base + base / 8 * u64::from(window & 7));
    }
    let dictionary_id_len = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = rest.get(dictionary_id_len..)?;
    match descriptor >> 6 {
        0 => size.first().map(|size| u64::from(*size)),
        1 => size.first_chunk().map(|size| u64::from(u16::from_le_bytes(*size)) + 256),
        2 => size.first_chunk().map(|size| u64::from(u32::from_le_bytes(*size))),
        _ => size.first_chunk().map(|size| u64::from_le_bytes(*size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CODECS: [CompressionType; 4] =
        [CompressionType::Lz4, CompressionType::Zlib, CompressionType::Zstd, CompressionType::Snappy];

    #[test]
    fn sizes_are_checked() {
        let plain = Bytes::from(vec![7; 1000]);
        for codec in CODECS {
            let compressed = compress(codec, &plain);
            let too_large = DecompressError::TooLarge { uncompressed_bytes: 1000, limit_bytes: 999 };
            assert_eq!(decompress(codec, &compressed, 1000, 999), Err(too_large));
            let wrong_size = DecompressError::WrongSize { expected_bytes: 1001 };
            assert_eq!(decompress(codec, &compressed, 1001, 2000), Err(wrong_size));
            // A stream that holds more than it should is refused, except that zlib is not read to its end.
            assert_eq!(decompress(codec, &compressed, 999, 2000).is_ok(), codec == CompressionType::Zlib, "{codec:?}");
            assert!(decompress(codec, &Bytes::new(), 1000, 2000).is_err(), "{codec:?}");
        }
        assert_eq!(decompress(CompressionType::None, &plain, 0, 0), Ok(plain));
    }

    #[test]
    fn zstd_bomb_is_refused_by_its_window() {
        // A window of 2 TiB, then run-length blocks of 128 KiB each.
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 31 << 3];
        for _ in 0..1000 {
            bomb.extend_from_slice(&[0x02, 0x00, 0x10, b'a']);
        }
        let error = decompress(CompressionType::Zstd, &bomb.into(), 10, 10).unwrap_err();
        assert_eq!(error.to_string(), "cannot decompress Zstd: window of 2199023255552 bytes is larger than 8388608");
    }

    proptest! {
        #[test]
        fn round_trips(plain in proptest::collection::vec(0u8..4, 0..4000)) {
            let plain = Bytes::from(plain);
            for codec in CODECS {
                let compressed = compress(codec, &plain);
                prop_assert_eq!(decompress(codec, &compressed, plain.len(), 4000), Ok(plain.clone()), "{:?}", codec);
            }
        }
    }
}
