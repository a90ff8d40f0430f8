//! Whether the required fields of a command are there: the generated code does not ask, and reads a missing one as zero.

use crate::command::DecodeError;
use crate::proto::base_command::Type;
use crate::wire::Reader;

/// What of a message must be there. The table is made by `build.rs` from the `.proto` file.
struct MessageShape {
    name: &'static str,
    /// Field numbers; all below 64.
    required: &'static [u32],
    /// Enum fields, and the values we know. Any other counts as absent.
    enums: &'static [(u32, &'static [i32])],
    /// Fields that hold messages, and which row of the table says more.
    nested: &'static [(u32, usize)],
}

include!(concat!(env!("OUT_DIR"), "/required.rs"));

/// Checks the sub-message of a command, and everything in it.
pub(crate) fn check_command(command: Type, body: &[u8]) -> Result<(), DecodeError> {
    let base = SHAPES.last().expect("the table ends with BaseCommand");
    let (_, index) =
        base.nested.iter().find(|(number, _)| *number == command as u32).expect("every type has a message");
    check(&SHAPES[*index], body, 0)
}

/// Deeper than any message a client builds (schema properties in a SUBSCRIBE: 3).
const MAX_DEPTH: u32 = 8;

fn check(shape: &MessageShape, message: &[u8], depth: u32) -> Result<(), DecodeError> {
    if depth > MAX_DEPTH {
        return Err(DecodeError::TooDeep { message: shape.name });
    }
    let mut seen = 0u64;
    let mut reader = Reader::new(message);
    while let Some(field) = reader.next_field()? {
        if let Some((_, index)) = shape.nested.iter().find(|(number, _)| *number == field.number) {
            check(&SHAPES[*index], field.bytes()?, depth + 1)?;
        }
        if let Some((_, known)) = shape.enums.iter().find(|(number, _)| *number == field.number)
            && !known.contains(&field.int32()?)
        {
            continue;
        }
        if field.number < u64::BITS {
            seen |= 1 << field.number;
        }
    }
    match shape.required.iter().find(|number| seen & (1 << **number) == 0) {
        Some(field) => Err(DecodeError::NoField { message: shape.name, field: *field }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_fits_its_use() {
        assert_eq!(SHAPES.last().map(|shape| shape.name), Some("BaseCommand"));
        for shape in SHAPES {
            assert!(shape.required.iter().all(|number| *number < u64::BITS), "{}", shape.name);
        }
        let subscribe = SHAPES.iter().find(|shape| shape.name == "CommandSubscribe").unwrap();
        assert_eq!(subscribe.required, [1, 2, 3, 4, 5]);
        assert_eq!(subscribe.enums, [(3, &[0, 1, 2, 3][..]), (13, &[0, 1][..])]);
    }
}
