"""Invented passwords and keys without a distinctive form, at each place where programs and commands write them.

A *form* is a line of a file, of a command or of a protocol. None of the values was ever a real password.
"""

from __future__ import annotations

import base64
import json
import random
import urllib.parse
from collections.abc import Callable, Iterator

from tests.recording.secret_corpus import ALNUM, HEX, LOW, UP, WORD, Context, Planted, random_text

Made = Callable[[random.Random], str]
Form = Callable[[str], str]
"""Returns the text around a value."""

BOUNDARY = "------------------------d74496d66958873e"


def with_marks(marks: str, alphabet: str = ALNUM, count: int = 13) -> Made:
    """Return a function that makes a password with one or two of these punctuation marks in the middle."""

    def make(chance: random.Random) -> str:
        drawn = [chance.choice(alphabet) for _ in range(count)]
        for at in chance.sample(range(2, count - 2), 2):
            drawn[at] = chance.choice(marks)
        return "".join(drawn)

    return make


def mixed_case(count: int) -> Made:
    """Return a function that makes letters of both cases, without a digit."""

    def make(chance: random.Random) -> str:
        drawn = [chance.choice(UP + LOW) for _ in range(count)]
        drawn[2], drawn[5] = chance.choice(LOW), chance.choice(UP)
        return "".join(drawn)

    return make


PASSWORDS: dict[str, Made] = {
    "letters and digits": random_text(ALNUM, 14),
    "without digits": mixed_case(14),
    "with $": with_marks("$"),
    "with &": with_marks("&"),
    "with @": with_marks("@"),
    "without digits, with $&@": with_marks("$&@", UP + LOW),
    "with !#%^*": with_marks("!#%^*"),
    "with +/=": with_marks("+/="),
    "short": random_text(ALNUM, 9),
}
"""Passwords as password managers generate them, and as people extend them with punctuation marks."""

KEYS: dict[str, Made] = {
    "hex": random_text(HEX, 32),
    "base64": random_text(ALNUM + "+/", 44, after="=="),
    "word": random_text(WORD, 40),
}


def _quoted(value: str) -> str:
    return urllib.parse.quote(value, safe="")


def _shell(value: str) -> str:
    """Return a value as a careful person writes it in a shell: in quotes if it contains marks."""
    return value if value.isalnum() else f"'{value}'"


PASSWORD_FORMS: dict[str, Form] = {
    "environment": lambda v: f"DB_PASSWORD={v}\n",
    "export, single quotes": lambda v: f"export DB_PASSWORD='{v}'\n",
    "export, double quotes": lambda v: f'export APP_PASSWD="{v}"\n',
    "JSON": lambda v: json.dumps({"user": "app", "password": v, "port": 5432}),
    "JSON in JSON": lambda v: json.dumps(json.dumps({"password": v})),
    "YAML": lambda v: f"db:\n  password: {v}\n  port: 5432\n",
    "YAML, quotes": lambda v: f'db:\n  password: "{v}"\n',
    "list of variables": lambda v: f"    environment:\n      - POSTGRES_PASSWORD={v}\n",
    "name and value": lambda v: f"env:\n  - name: DB_PASSWORD\n    value: {_shell(v)}\n",
    "name and value, JSON": lambda v: json.dumps([{"name": "DB_PASSWORD", "value": v}]),
    "Dockerfile": lambda v: f"FROM postgres\nENV POSTGRES_PASSWORD {v}\n",
    "TOML": lambda v: f'[db]\npassword = "{v}"\n',
    "INI": lambda v: f"[client]\nuser=app\npassword={v}\n",
    "properties": lambda v: f"spring.datasource.password={v}\n",
    "Python": lambda v: f"conn = connect(host, user='app', password='{v}')\n",
    "Python, dict": lambda v: f"{ {'user': 'app', 'password': v}!r}",
    "Python, auth": lambda v: f'requests.get(url, auth=("app", "{v}"))\n',
    "Go": lambda v: f'password := "{v}"\n',
    "JavaScript": lambda v: f"const db = {{ user: 'app', password: '{v}' }};\n",
    "PHP, define": lambda v: f"define('DB_PASSWORD', '{v}');\n",
    "PHP, define, double quotes": lambda v: f'define( "DB_PASSWORD", "{v}" );\n',
    "PHP, array": lambda v: f"    'password' => '{v}',\n",
    "Ruby": lambda v: f"  :password => '{v}',\n",
    "setenv": lambda v: f'os.environ["DB_PASSWORD"] = "{v}"\n',
    "setenv, call": lambda v: f"monkeypatch.setenv('DB_PASSWORD', '{v}')\n",
    "Java property": lambda v: f"java -Ddb.password={_shell(v)} -jar app.jar\n",
    "XML element": lambda v: f"<user>app</user><password>{v.replace('&', '&amp;')}</password>\n",
    "XML attribute": lambda v: f'<db user="app" password="{v.replace("&", "&amp;")}"/>\n',
    "XML, key and value": lambda v: f'<add key="Password" value="{v.replace("&", "&amp;")}"/>\n',
    "connection string": lambda v: f"Server=db;Database=main;User Id=sa;Password={v};Timeout=3\n",
    "libpq": lambda v: f'psql "host=db user=app password={v} dbname=main"\n',
    "PowerShell": lambda v: f"$env:DB_PASSWORD = '{v}'\n",
    "cmd": lambda v: f"set DB_PASSWORD={v}\r\n",
    "form": lambda v: f"grant_type=password&username=app&password={_quoted(v)}&scope=all",
    "multipart": lambda v: (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="password"\r\n\r\n{v}\r\n--{BOUNDARY}--\r\n'
    ),
    "multipart, JSON": lambda v: json.dumps(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="password"\r\n\r\n{v}\r\n--{BOUNDARY}--\r\n'
    ),
    "netrc": lambda v: f"machine api.example.org login app password {v}\n",
    "netrc, lines": lambda v: f"machine api.example.org\n  login app\n  password {v}\n",
    "pgpass": lambda v: f"db.internal:5432:main:app:{v}\n",
    "pgpass, any database": lambda v: f"*:*:*:app:{v}\n",
    "URL": lambda v: f"DATABASE_URL=postgres://app:{_quoted(v)}@db.internal:5432/main\n",
    "curl -u": lambda v: f"$ curl -s -u {_shell('app:' + v)} https://api.example.org/v1\n",
    "curl -u, quotes": lambda v: f"curl -u 'app:{v}' https://api.example.org/v1\n",
    "curl --user": lambda v: f"curl --user {_shell('app:' + v)} https://api.example.org/v1\n",
    "curl --user=": lambda v: f'curl --user="app:{v}" -X POST https://api.example.org/v1\n',
    "curl -U": lambda v: f"curl -x proxy:3128 -U {_shell('app:' + v)} https://example.org\n",
    "sshpass -p": lambda v: f"sshpass -p {_shell(v)} ssh app@db.internal uptime\n",
    "sshpass -p, joined": lambda v: f"sshpass -p{_shell(v)} scp a.txt app@db.internal:\n",
    "mysql -p": lambda v: f"mysql -h db -u app -p{_shell(v)} main -e 'select 1'\n",
    "mysqldump -p": lambda v: f"mysqldump -uapp -p'{v}' main > dump.sql\n",
    "mysql --password": lambda v: f"mysql --user=app --password={_shell(v)} main\n",
    "MYSQL_PWD": lambda v: f"MYSQL_PWD={_shell(v)} mysql -u app main\n",
    "PGPASSWORD": lambda v: f"PGPASSWORD={_shell(v)} psql -h db -U app main\n",
    "redis-cli -a": lambda v: f"redis-cli -h cache -a {_shell(v)} ping\n",
    "docker login -p": lambda v: f"docker login -u app -p {_shell(v)} registry.example.org\n",
    "docker login, stdin": lambda v: (
        f"echo {_shell(v)} | docker login -u app --password-stdin r.example.org\n"
    ),
    "mongosh -p": lambda v: f"mongosh --host db -u app -p {_shell(v)} main\n",
    "ldapsearch -w": lambda v: f"ldapsearch -x -D cn=app,dc=example -w {_shell(v)} -b dc=example\n",
    "smbclient -U": lambda v: f"smbclient //files/share -U {_shell('app%' + v)} -c ls\n",
    "wget": lambda v: f"wget --user=app --http-password={_shell(v)} https://example.org/a\n",
    "svn": lambda v: f"svn checkout --username app --password {_shell(v)} https://example.org/a\n",
    "openssl": lambda v: f"openssl rsa -in key.pem -passin pass:{_shell(v)} -out k.pem\n",
    "htpasswd": lambda v: f"htpasswd -bc .htpasswd app {_shell(v)}\n",
    "chpasswd": lambda v: f"echo {_shell('app:' + v)} | chpasswd\n",
    "SQL, MySQL": lambda v: f"CREATE USER 'app'@'%' IDENTIFIED BY '{v}';\n",
    "SQL, PostgreSQL": lambda v: f"ALTER ROLE app WITH LOGIN PASSWORD '{v}';\n",
    "Terraform": lambda v: f'  master_password   = "{v}"\n',
    "Secret of Kubernetes": lambda v: (
        f"data:\n  password: {base64.b64encode(v.encode()).decode()}\ntype: Opaque\n"
    ),
    "passphrase": lambda v: f"passphrase: {v}\n",
    "command line": lambda v: f"app login --username app --password {_shell(v)}\n",
}
"""Where passwords are written."""

KEY_FORMS: dict[str, Form] = {
    "environment": lambda v: f"PAYMENT_API_KEY={v}\n",
    "vendor's name": lambda v: f"COHERE_KEY={v}\n",
    "vendor's name, quotes": lambda v: f'AZURE_OPENAI_KEY="{v}"\n',
    "secret": lambda v: f"JWT_SECRET={v}\n",
    "secret of an app": lambda v: f"SECRET_KEY_BASE={v}\n",
    "token": lambda v: f"CLOUDFLARE_API_TOKEN={v}\n",
    "camel case": lambda v: json.dumps({"accessToken": v, "expiresIn": 3600}),
    "refresh token": lambda v: json.dumps({"refresh_token": v, "token_type": "bearer"}),
    "client secret": lambda v: f"client_secret: {v}\n",
    "encryption key": lambda v: f"ENCRYPTION_KEY='{v}'\n",
    "header": lambda v: f"curl -H 'X-Api-Key: {v}' https://api.example.org\n",
    "header, token": lambda v: f"> X-Auth-Token: {v}\r\n",
    "header, private": lambda v: f"PRIVATE-TOKEN: {v}\n",
    "header, JSON": lambda v: json.dumps({"headers": {"X-API-Key": v}}),
    "Authorization, Okta": lambda v: f"Authorization: SSWS {v}\n",
    "Authorization, token": lambda v: f"Authorization: token {v}\n",
    "Authorization, no scheme": lambda v: f'"Authorization": "{v}"\n',
    "query": lambda v: f"GET /v1/x?access_token={_quoted(v)}&page=2\n",
    "query, appid": lambda v: f"https://api.example.org/data?q=Oslo&appkey={_quoted(v)}\n",
    "Python": lambda v: f'client = Client(api_key="{v}")\n',
    "Python, setenv": lambda v: f'os.environ["SERVICE_TOKEN"] = "{v}"\n',
    "option": lambda v: f"deploy --api-key {v} --region eu\n",
    "option, token": lambda v: f"deploy --token={v}\n",
    "properties": lambda v: f"aws.secretKey={v}\n",
    "name and value": lambda v: f"- name: API_TOKEN\n  value: {v}\n",
    "npmrc": lambda v: f"//registry.example.org/:_authToken={v}\n",
    "npmrc, password": lambda v: f"//registry.example.org/:_password={v}\n",
    "docker config": lambda v: json.dumps({"auths": {"r.example.org": {"auth": v}}}),
    "storage": lambda v: f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={v};Suffix=x\n",
    "service bus": lambda v: f"SharedAccessKeyName=Root;SharedAccessKey={v}\n",
    "GitHub Actions": lambda v: f"  env:\n    DEPLOY_KEY: {v}\n",
    "XML": lambda v: f"<apiKey>{v}</apiKey>\n",
}
"""Where keys without a distinctive form are written."""

AROUND: dict[str, Context] = {
    "text": lambda name, text: f"$ cat x\n{text}",
    "tool result": lambda name, text: json.dumps({"type": "tool_result", "content": text}),
    "colored": lambda name, text: f"\x1b[32m12\x1b[m\x1b[36m:\x1b[m{text}",
    "diff": lambda name, text: "".join(f"+{line}\n" for line in text.splitlines()),
}
"""Texts in which agents see such a line."""


def assignments(seed: int = 1) -> Iterator[Planted]:
    """Yield each combination of a value, a form and a surrounding text."""
    chance = random.Random(seed)
    for forms, values in ((PASSWORD_FORMS, PASSWORDS), (KEY_FORMS, KEYS)):
        for name, form in forms.items():
            for sort, make in values.items():
                for around, write in AROUND.items():
                    value = make(chance)
                    text = write(name, form(value))
                    yield Planted(f"{name}: {sort}", around, text, _written(value, text))


def _written(value: str, text: str) -> str:
    """Return a value as the text contains it."""
    written = (
        value,
        _quoted(value),
        value.replace("&", "&amp;"),
        base64.b64encode(value.encode()).decode(),
    )
    return next(each for each in written if each in text)
