//! Protobuf's text format, as far as version 2 of the ledger metadata needs it.

use bytes::Bytes;

use crate::ledger_metadata::{
    CustomFormat, LedgerMetadataError, LedgerMetadataFormat, STATE_CLOSED, STATE_IN_RECOVERY, STATE_OPEN,
    SegmentFormat, malformed,
};

pub(crate) fn parse(text: &str) -> Result<LedgerMetadataFormat, LedgerMetadataError> {
    let mut reader = Reader { rest: text };
    let mut message = LedgerMetadataFormat::default();
    while let Some(field) = reader.field()? {
        match field {
            "quorumSize" => message.quorum_size = reader.number()?,
            "ensembleSize" => message.ensemble_size = reader.number()?,
            "length" => message.length = reader.number()?,
            "lastEntryId" => message.last_entry_id = Some(reader.number()?),
            "state" => {
                message.state = reader.one_of(&[
                    ("OPEN", STATE_OPEN),
                    ("IN_RECOVERY", STATE_IN_RECOVERY),
                    ("CLOSED", STATE_CLOSED),
                ])?
            }
            "segment" => message.segment.push(segment(&mut reader)?),
            "digestType" => {
                let digest = reader.one_of(&[("CRC32", 1), ("HMAC", 2), ("CRC32C", 3), ("DUMMY", 4)])?;
                message.digest_type = Some(digest);
            }
            "password" => message.password = Some(reader.string()?),
            "ackQuorumSize" => message.ack_quorum_size = Some(reader.number()?),
            "ctime" => message.ctime = Some(reader.number()?),
            "customMetadata" => message.custom_metadata.push(custom(&mut reader)?),
            "cToken" => message.c_token = Some(reader.number()?),
            other => return Err(malformed(format!("unknown field `{other}`"))),
        }
    }
    Ok(message)
}

fn segment(reader: &mut Reader<'_>) -> Result<SegmentFormat, LedgerMetadataError> {
    let mut segment = SegmentFormat::default();
    reader.open()?;
    while let Some(field) = reader.field_inside()? {
        match field {
            "ensembleMember" => segment.ensemble_member.push(reader.utf8()?),
            "firstEntryId" => segment.first_entry_id = reader.number()?,
            other => return Err(malformed(format!("unknown field `{other}` in segment"))),
        }
    }
    Ok(segment)
}

fn custom(reader: &mut Reader<'_>) -> Result<CustomFormat, LedgerMetadataError> {
    let mut custom = CustomFormat::default();
    reader.open()?;
    while let Some(field) = reader.field_inside()? {
        match field {
            "key" => custom.key = Some(reader.utf8()?),
            "value" => custom.value = Some(reader.string()?),
            other => return Err(malformed(format!("unknown field `{other}` in customMetadata"))),
        }
    }
    Ok(custom)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// The next field's name, or `None` at the end of the text.
    fn field(&mut self) -> Result<Option<&'a str>, LedgerMetadataError> {
        self.skip_blank();
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.word().map(Some)
    }

    /// The next field's name, or `None` at the closing brace, which is taken.
    fn field_inside(&mut self) -> Result<Option<&'a str>, LedgerMetadataError> {
        self.skip_blank();
        if self.take('}') {
            return Ok(None);
        }
        self.word().map(Some)
    }

    fn open(&mut self) -> Result<(), LedgerMetadataError> {
        self.skip_blank();
        self.take(':'); // Optional before a message.
        self.skip_blank();
        if self.take('{') { Ok(()) } else { Err(self.expected("`{`")) }
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T, LedgerMetadataError> {
        let word = self.value()?;
        word.parse().map_err(|_| malformed(format!("`{word}`: expected a number")))
    }

    fn one_of(&mut self, names: &[(&str, i32)]) -> Result<i32, LedgerMetadataError> {
        let word = self.value()?;
        let known = names.iter().find(|(name, number)| *name == word || number.to_string() == word);
        known.map(|(_, number)| *number).ok_or_else(|| malformed(format!("`{word}` is not a known name")))
    }

    fn utf8(&mut self) -> Result<String, LedgerMetadataError> {
        String::from_utf8(self.string()?.into()).map_err(malformed)
    }

    /// A quoted string; protobuf writes what is not printable ASCII as `\n`, `\"`, … or in three octal digits.
    fn string(&mut self) -> Result<Bytes, LedgerMetadataError> {
        self.colon()?;
        let quote = if self.take('"') {
            '"'
        } else if self.take('\'') {
            '\''
        } else {
            return Err(self.expected("a string"));
        };
        let mut bytes = Vec::new();
        let mut chars = self.rest.chars();
        loop {
            match chars.next().ok_or_else(|| malformed("a string does not end"))? {
                end if end == quote => break,
                '\\' => bytes.push(escaped(&mut chars)?),
                plain => bytes.extend_from_slice(plain.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        self.rest = chars.as_str();
        Ok(bytes.into())
    }

    fn value(&mut self) -> Result<&'a str, LedgerMetadataError> {
        self.colon()?;
        self.word()
    }

    fn colon(&mut self) -> Result<(), LedgerMetadataError> {
        self.skip_blank();
        if !self.take(':') {
            return Err(self.expected("`:`"));
        }
        self.skip_blank();
        Ok(())
    }

    fn word(&mut self) -> Result<&'a str, LedgerMetadataError> {
        let is_end = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
        let (word, rest) = self.rest.split_at(self.rest.find(is_end).unwrap_or(self.rest.len()));
        if word.is_empty() {
            return Err(self.expected("a name or a number"));
        }
        self.rest = rest;
        Ok(word)
    }

    fn take(&mut self, wanted: char) -> bool {
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn skip_blank(&mut self) {
        self.rest = self.rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || matches!(c, ',' | ';'));
    }

    fn expected(&self, what: &str) -> LedgerMetadataError {
        let found: String = self.rest.chars().take(20).collect();
        malformed(format!("`{found}`: expected {what}"))
    }
}

fn escaped(chars: &mut std::str::Chars<'_>) -> Result<u8, LedgerMetadataError> {
    let digits = |chars: &mut std::str::Chars<'_>, radix: u32, first: u32, most: usize| {
        let mut value = first;
        for _ in 0..most {
            let Some(digit) = chars.clone().next().and_then(|c| c.to_digit(radix)) else { break };
            chars.next();
            value = value * radix + digit;
        }
        u8::try_from(value).map_err(|_| malformed("an escaped byte is above 255"))
    };
    match chars.next().ok_or_else(|| malformed("a string does not end"))? {
        'n' => Ok(b'\n'),
        'r' => Ok(b'\r'),
        't' => Ok(b'\t'),
        'a' => Ok(7),
        'b' => Ok(8),
        'f' => Ok(12),
        'v' => Ok(11),
        'x' | 'X' => digits(chars, 16, 0, 2),
        octal @ '0'..='7' => digits(chars, 8, octal as u32 - '0' as u32, 2),
        plain @ ('\\' | '\'' | '"' | '?') => Ok(plain as u8),
        other => Err(malformed(format!("unknown escape `\\{other}`"))),
    }
}
