vcl 4.1;
import vsthrottle;
backend stub { .host = "127.0.0.1"; .port = "@upstream@"; }
sub vcl_recv {
  if (vsthrottle.is_denied(req.http.Authorization, 50, 5s)) {
    return (synth(429, "Too Many Requests"));
  }
  return (pass);
}
