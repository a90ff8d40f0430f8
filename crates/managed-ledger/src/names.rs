//! Names in metadata paths: form-URL-encoded, as the original does it.

/// Everything but ASCII letters, digits and `.-*_` becomes `%XX`, a space `+`.
pub(crate) fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for &byte in name.as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => encoded.push(char::from(byte)),
            b' ' => encoded.push('+'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The reverse; `None` if `encoded` is not well-formed.
pub(crate) fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_java_url_encoder() {
        for (name, encoded) in [
            ("sub", "sub"),
            ("a b", "a+b"),
            ("a+b/c", "a%2Bb%2Fc"),
            ("pulsar.repl.west-1_*", "pulsar.repl.west-1_*"),
            ("~é", "%7E%C3%A9"),
        ] {
            assert_eq!(encode(name), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(name));
        }
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decode(bad), None);
        }
    }
}
