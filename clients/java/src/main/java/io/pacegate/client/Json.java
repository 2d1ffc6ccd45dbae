package io.pacegate.client;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** Reads and writes JSON, because the JDK cannot. Numbers are {@link BigDecimal}. */
final class Json {
    private static final int MAX_DEPTH = 64;

    private final String text;
    private int position;

    private Json(String text) {
        this.text = text;
    }

    /** Parses a document. Throws {@link IllegalArgumentException} if it is invalid. */
    static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.skipSpace();
        if (json.position < text.length()) throw json.invalid();
        return value;
    }

    static String write(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream()
                    .map(entry -> quote(entry.getKey().toString()) + ":" + write(entry.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Json::write).collect(Collectors.joining(",", "[", "]"));
        }
        return value instanceof String string ? quote(string) : String.valueOf(value);
    }

    private static String quote(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') quoted.append('\\').append(c);
            else if (c < ' ' || Character.isSurrogate(c)) quoted.append(String.format("\\u%04x", (int) c));
            else quoted.append(c);
        }
        return quoted.append('"').toString();
    }

    private Object value(int depth) {
        if (depth > MAX_DEPTH) throw invalid();
        return switch (peek()) {
            case '{' -> object(depth);
            case '[' -> array(depth);
            case '"' -> string();
            case 't' -> word("true", true);
            case 'f' -> word("false", false);
            case 'n' -> word("null", null);
            default -> number();
        };
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> members = new LinkedHashMap<>();
        expect('{');
        while (peek() != '}') {
            if (!members.isEmpty()) expect(',');
            if (peek() != '"') throw invalid();
            String name = string();
            expect(':');
            members.put(name, value(depth + 1));
        }
        expect('}');
        return members;
    }

    private List<Object> array(int depth) {
        List<Object> items = new ArrayList<>();
        expect('[');
        while (peek() != ']') {
            if (!items.isEmpty()) expect(',');
            items.add(value(depth + 1));
        }
        expect(']');
        return items;
    }

    private String string() {
        StringBuilder read = new StringBuilder();
        expect('"');
        while (true) {
            char c = next();
            if (c == '"') return read.toString();
            read.append(c == '\\' ? escaped() : c);
        }
    }

    private char escaped() {
        char c = next();
        return switch (c) {
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            case 'u' -> (char) Integer.parseInt("" + next() + next() + next() + next(), 16);
            default -> c;
        };
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, position)) throw invalid();
        position += word.length();
        return value;
    }

    private BigDecimal number() {
        int start = position;
        while (position < text.length() && "+-.0123456789eE".indexOf(text.charAt(position)) >= 0) position++;
        return new BigDecimal(text.substring(start, position));
    }

    private char peek() {
        skipSpace();
        if (position >= text.length()) throw invalid();
        return text.charAt(position);
    }

    private char next() {
        if (position >= text.length()) throw invalid();
        return text.charAt(position++);
    }

    private void expect(char c) {
        if (peek() != c) throw invalid();
        position++;
    }

    private void skipSpace() {
        while (position < text.length() && " \t\r\n".indexOf(text.charAt(position)) >= 0) position++;
    }

    private IllegalArgumentException invalid() {
        return new IllegalArgumentException("invalid JSON at character " + position);
    }
}
