" Completions in your own style, for Vim and Neovim: source this file. It needs curl and a running `rlstm serve`.
"
"     :RlstmLearn    the session reads the file, or the lines that are selected, and learns from them
"     Ctrl-L         in insert mode: how this line may go on
"
" rlstm session create --name editor   makes the session.

let g:rlstm_url = get(g:, 'rlstm_url', 'http://127.0.0.1:8000')
let g:rlstm_model = get(g:, 'rlstm_model', 'bytes-small@editor')
let g:rlstm_key = get(g:, 'rlstm_key', $RLSTM_API_KEY)

function! s:Ask(options) abort
  let body = json_encode(extend({'model': g:rlstm_model}, a:options))
  let curl = ['curl', '--silent', '--show-error', '--data-binary', '@-', '--header', 'content-type: application/json']
  let curl += empty(g:rlstm_key) ? [] : ['--header', 'authorization: Bearer ' . g:rlstm_key]
  let answer = system(join(map(curl + [g:rlstm_url . '/v1/completions'], 'shellescape(v:val)')), body)
  let answer = v:shell_error ? {'error': {'message': trim(answer)}} : json_decode(answer)
  if has_key(answer, 'error')
    echohl ErrorMsg | echomsg 'rlstm: ' . answer.error.message | echohl None
    return []
  endif
  return map(answer.choices, 'v:val.text')
endfunction

function! RlstmLearn(first, last) abort
  let text = join(getline(a:first, a:last), "\n") . "\n"
  return s:Ask({'prompt': text, 'store': v:true, 'max_tokens': 0, 'echo': v:true})
endfunction

function! RlstmComplete() abort
  let before = getline(max([1, line('.') - 20]), line('.') - 1) + [strpart(getline('.'), 0, col('.') - 1)]
  let ways = s:Ask({'prompt': join(before, "\n"), 'max_tokens': 60, 'n': 3, 'temperature': 0.7, 'stop': "\n"})
  call complete(col('.'), filter(uniq(sort(ways)), 'v:val != ""'))
  return ''
endfunction

command! -range=% RlstmLearn call RlstmLearn(<line1>, <line2>)
inoremap <silent> <C-L> <C-R>=RlstmComplete()<CR>
