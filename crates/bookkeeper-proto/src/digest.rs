use bytes::Bytes;
use checksum::Shift;
use hmac::{Hmac, Mac};
use sha1::{Digest as _, Sha1};

/// How a ledger's entries are protected. The numbers are those of the metadata format.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DigestType {
    Crc32 = 1,
    Hmac = 2,
    Crc32c = 3,
    Dummy = 4,
}

impl DigestType {
    pub fn from_number(number: i32) -> Option<DigestType> {
        match number {
            1 => Some(DigestType::Crc32),
            2 => Some(DigestType::Hmac),
            3 => Some(DigestType::Crc32c),
            4 => Some(DigestType::Dummy),
            _ => None,
        }
    }

    /// The bytes a digest of this type takes in an entry.
    pub fn len_bytes(self) -> usize {
        match self {
            DigestType::Crc32 => 8,
            DigestType::Hmac => 20,
            DigestType::Crc32c => 4,
            DigestType::Dummy => 0,
        }
    }
}

/// What proves to a bookie that the writer, or the one that fences it, knows the ledger's password.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MasterKey(pub [u8; 20]);

impl MasterKey {
    pub fn from_password(password: &[u8]) -> MasterKey {
        MasterKey(keyed_sha1(b"ledger", password))
    }
}

/// A key is as good as the password: it stays out of logs.
impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

/// Computes the digests of one ledger's entries.
#[derive(Clone)]
pub enum Digester {
    Crc32,
    Hmac([u8; 20]),
    Crc32c,
    Dummy,
}

/// The digest of one entry, as long as its type says.
#[derive(Clone, Copy)]
pub struct Digest {
    bytes: [u8; 20],
    len: usize,
}

impl Digester {
    pub fn new(digest: DigestType, password: &[u8]) -> Digester {
        match digest {
            DigestType::Crc32 => Digester::Crc32,
            DigestType::Hmac => Digester::Hmac(keyed_sha1(b"mac", password)),
            DigestType::Crc32c => Digester::Crc32c,
            DigestType::Dummy => Digester::Dummy,
        }
    }

    pub fn digest_type(&self) -> DigestType {
        match self {
            Digester::Crc32 => DigestType::Crc32,
            Digester::Hmac(_) => DigestType::Hmac,
            Digester::Crc32c => DigestType::Crc32c,
            Digester::Dummy => DigestType::Dummy,
        }
    }

    /// The digest over the concatenation of `parts`.
    pub fn digest(&self, parts: &[&[u8]]) -> Digest {
        match self {
            Digester::Crc32 => {
                let mut crc = crc32fast::Hasher::new();
                parts.iter().for_each(|part| crc.update(part));
                Digest::from(&u64::from(crc.finalize()).to_be_bytes())
            }
            Digester::Hmac(key) => {
                let mut mac = Hmac::<Sha1>::new_from_slice(key).expect("HMAC takes a key of any length");
                parts.iter().for_each(|part| mac.update(part));
                Digest::from(&mac.finalize().into_bytes())
            }
            Digester::Crc32c => {
                let crc = parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
                Digest::from(&crc.to_be_bytes())
            }
            Digester::Dummy => Digest::from(&[]),
        }
    }

    /// The digest over `header ++ prefix ++ payload`, given the payload's CRC-32C: with that type of digest the payload is
    /// not read.
    pub(crate) fn digest_of_entry(
        &self,
        header: &[u8],
        prefix: &[u8],
        payload: &Bytes,
        crc: u32,
        past: Shift,
    ) -> Digest {
        match self {
            Digester::Crc32c => {
                let before = crc32c::crc32c_append(crc32c::crc32c(header), prefix);
                Digest::from(&past.join(before, crc).to_be_bytes())
            }
            Digester::Crc32 | Digester::Hmac(_) | Digester::Dummy => self.digest(&[header, prefix, payload]),
        }
    }
}

impl Digest {
    fn from(bytes: &[u8]) -> Digest {
        let mut digest = Digest { bytes: [0; 20], len: bytes.len() };
        digest.bytes[..bytes.len()].copy_from_slice(bytes);
        digest
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A digester knows the key of the ledger: it stays out of logs.
impl std::fmt::Debug for Digester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digester({:?})", self.digest_type())
    }
}

fn keyed_sha1(pad: &[u8], password: &[u8]) -> [u8; 20] {
    Sha1::new().chain_update(pad).chain_update(password).finalize().into()
}
