//! Java properties files, as far as the original's configuration files use them.

/// Key and value pairs in file order; the number of the first line that is not `key=value` as the error.
pub(super) fn parse(text: &str) -> Result<Vec<(String, String)>, usize> {
    let mut pairs = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = line.to_owned();
        // An odd number of trailing backslashes continues the line; an even number is escaped backslashes.
        while logical.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1 {
            logical.pop();
            let Some((_, next)) = lines.next() else { break };
            logical.push_str(next.trim_start());
        }
        let separator = logical.find(['=', ':']).ok_or(number + 1)?;
        let key = logical[..separator].trim();
        if key.is_empty() {
            return Err(number + 1);
        }
        pairs.push((key.to_owned(), logical[separator + 1..].trim().to_owned()));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn reads_what_the_shipped_files_use() {
        let text = "# comment\n! other\n\na=1\nb = two words \nc=\nd=x,\\\n   y\nurl=zk:h:2181\n";
        let expected = [("a", "1"), ("b", "two words"), ("c", ""), ("d", "x,y"), ("url", "zk:h:2181")];
        let expected: Vec<(String, String)> =
            expected.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("a=1\nnonsense\n"), Err(2));
        assert_eq!(parse("=x"), Err(1));
    }
}
