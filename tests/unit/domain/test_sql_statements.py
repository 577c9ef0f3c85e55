import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.authoring.sql_statements import split_statements
from triggerer.errors import DagError


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        ("select 1", ["select 1"]),
        ("select 1; select 2;\n", ["select 1", "select 2"]),
        (" ; ;select 1;;", ["select 1"]),
        ("select ';', \"a;b\", `c;d`; select 2", ["select ';', \"a;b\", `c;d`", "select 2"]),
        (r"select 'it\'s;'; select 2", [r"select 'it\'s;'", "select 2"]),
        ("select 'it''s;'; select 2", ["select 'it''s;'", "select 2"]),
        (r"select r'C:\'; select 2", [r"select r'C:\'", "select 2"]),
        ("select char'a;b'; select 2", ["select char'a;b'", "select 2"]),
        ("select 1 -- one; two\n; select 2", ["select 1 -- one; two", "select 2"]),
        ("select 1 -- it's\n; select 2", ["select 1 -- it's", "select 2"]),
        ("select /* a; /* b; */ c; */ 1; select 2", ["select /* a; /* b; */ c; */ 1", "select 2"]),
        ("-- nothing\n/* here; */", []),
        ("-- first\nselect 1; -- last", ["-- first\nselect 1"]),
        (
            "set x = 1; begin declare a int; select a; end",
            ["set x = 1", "begin declare a int; select a; end"],
        ),
        ("select 1 as begin; select 2", ["select 1 as begin", "select 2"]),
    ],
)
def test_a_semicolon_ends_a_statement_unless_it_is_quoted_or_in_a_comment(
    sql: str, statements: list[str]
) -> None:
    assert split_statements(sql) == statements


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select 1;\nselect 'a", "the quote ' in line 2"),
        ("select `a", "the quote ` in line 1"),
        ("select 1 /* /* */", "the comment /* in line 1"),
    ],
)
def test_a_quote_or_comment_without_an_end_is_an_error_with_its_line(sql: str, said: str) -> None:
    with pytest.raises(DagError) as caught:
        split_statements(sql)
    assert said in caught.value.message


quoted = st.text(alphabet=";- */a\n", max_size=5).map(lambda text: f"'{text}'")
plain = st.text(alphabet="ab \n(),", min_size=1, max_size=5)


@given(st.lists(st.lists(st.one_of(quoted, plain), min_size=1, max_size=4), max_size=4))
def test_statements_come_back_as_they_were_joined(parts: list[list[str]]) -> None:
    wanted = ["".join(one).strip() for one in parts]
    assert split_statements(";".join(wanted)) == [one for one in wanted if one]
